"""The endpoint's routes, and the JSON of every answer that is none of a route's. Runs on the endpoint's event loop."""

from __future__ import annotations

import time
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.server.chat import ChatCompletions
from engine.server.convert import is_served, model_id
from engine.server.errors import ApiError, no_such_model
from engine.server.exchange import error_response, json_response
from engine.server.guard import Guard
from engine.server.protocol import Health, ModelCard, ModelList
from engine.server.settings import EndpointSettings
from engine.threaded import ThreadedEngine


def build_app(engine: ThreadedEngine, settings: EndpointSettings, chat: ChatCompletions) -> Starlette:
    """The ASGI application."""
    models = _Models(engine)
    app = Starlette(
        routes=[
            Route("/health", models.health),
            Route("/metrics", models.metrics),
            Route("/v1/models", models.all),
            Route("/v1/models/{name:path}", models.one),
            Route("/v1/chat/completions", chat, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, settings)],
        exception_handlers={ApiError: _api_error, HTTPException: _http_error, Exception: _fault},
    )
    app.router.redirect_slashes = False
    return app


class _Models:
    """What can be asked for."""

    def __init__(self, engine: ThreadedEngine) -> None:
        self._engine = engine
        self._created = int(time.time())

    async def health(self, request: Request) -> Response:
        """For supervisors, who have no key: says no more than whether a chat would be answered."""
        ready = self._engine.model is not None
        return json_response(Health("ok" if ready else "no model"), 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """The counters as they stand, for Prometheus: unlike an instruction, a scrape must not wait for a step."""
        from engine.exposition import exposition

        body, content_type = exposition(self._engine.metrics)
        return Response(body, media_type=content_type)

    async def all(self, request: Request) -> Response:
        model = self._engine.model
        return json_response(ModelList([] if model is None else [ModelCard(model_id(model), self._created)]))

    async def one(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        model = self._engine.model
        if model is None or not is_served(name, model):
            raise no_such_model(name, "" if model is None else model_id(model))
        return json_response(ModelCard(model_id(model), self._created))


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    """An unknown path or a wrong method."""
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    message = f"{request.method} {request.url.path}: {phrase.lower()}. This endpoint's address ends in /v1."
    response = error_response(ApiError(error.status_code, message, code=phrase.lower().replace(" ", "_")))
    response.headers.update(error.headers or {})
    return response


async def _fault(request: Request, error: Exception) -> Response:
    return error_response(ApiError(500, f"The endpoint failed ({type(error).__name__}). The log has the details."))
