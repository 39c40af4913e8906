"""The OpenAI-compatible endpoint: HTTP in front of a ThreadedEngine. The only place that knows HTTP; knows no Qt.

settings.py what the user decides · endpoint.py the thread and its socket · app.py the routes · guard.py who may call ·
chat.py one chat completion · protocol.py the JSON · convert.py JSON to Request · answer.py Delta to JSON ·
exchange.py one HTTP exchange · errors.py what goes wrong, as a status.
"""
