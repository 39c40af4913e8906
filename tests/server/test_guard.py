"""Who is let in: names, pages of the web, keys."""

import openai
import pytest

from engine.server.guard import Guard
from engine.server.settings import EndpointSettings


def verdict(settings, path="/v1/models", **headers):
    """The code of the refusal, or None."""
    raw = [(name.encode(), value.encode("latin-1")) for name, value in {"host": "127.0.0.1", **headers}.items()]
    scope = {"type": "http", "path": path, "headers": raw}
    sent = []

    async def app(scope, receive, send):
        sent.append(None)

    async def send(message):
        sent.append(message)

    running = Guard(app, settings)(scope, None, send)
    with pytest.raises(StopIteration):
        running.send(None)
    return None if sent == [None] else sent[0]["status"]


@pytest.mark.parametrize(
    "host", ["127.0.0.1:4117", "localhost", "LOCALHOST:80", "[::1]:4117", "127.1.2.3", "app.localhost"]
)
def test_loopback_names_are_welcome(host):
    assert verdict(EndpointSettings(), host=host) is None


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:4117", "127.0.0.1.evil.example", "192.168.1.5", "localhost.evil.example"]
)
def test_other_names_are_not(host):
    assert verdict(EndpointSettings(), host=host) == 403


@pytest.mark.parametrize("host", ["", ":", "[", "a b"])
def test_names_that_are_none(host):
    assert verdict(EndpointSettings(), host=host) == 403


@pytest.mark.parametrize(
    ("host", "status"), [("192.168.1.5:4117", None), ("[fe80::1]", None), ("localhost", None), ("evil.example", 403)]
)
def test_on_every_address_any_address_is_welcome_but_no_strangers_name(host, status):
    assert verdict(EndpointSettings(host="0.0.0.0"), host=host) == status


def test_the_name_that_the_user_gave_is_welcome():
    assert verdict(EndpointSettings(host="Hearth.local"), host="hearth.local:4117") is None


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", None),
        ("http://127.0.0.1", None),
        ("app://notes", None),
        ("https://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_pages_of_the_web(origin, status):
    assert verdict(EndpointSettings(), origin=origin) == status


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ("Bearer right", None),
        ("bearer  right", None),
        ("Bearer wrong", 401),
        ("Bearer", 401),
        ("right", 401),
        ("Bearer rigét", 401),
        ("Basic right", 401),
    ],
)
def test_keys(given, status):
    assert verdict(EndpointSettings(api_key="right"), authorization=given) == status


def test_health_needs_no_key():
    assert verdict(EndpointSettings(api_key="right"), path="/health") is None
    assert verdict(EndpointSettings(api_key="right")) == 401


def test_a_client_with_and_without_the_key(serve):
    served = serve(settings=EndpointSettings(api_key="right"))
    assert served.client.models.list().data
    with pytest.raises(openai.AuthenticationError) as caught:
        served.client.with_options(api_key="wrong").models.list()
    assert caught.value.code == "invalid_api_key"
    assert caught.value.response.headers["www-authenticate"] == "Bearer"


def test_a_strange_name_over_the_wire_and_no_cors_headers(plain):
    assert plain.call("GET", "/v1/models", Host="evil.example").error["code"] == "host_not_allowed"
    reply = plain.call("GET", "/v1/models", Origin="http://localhost:3000")
    assert reply.status == 200
    assert not [name for name in reply.headers if name.lower().startswith("access-control")]
