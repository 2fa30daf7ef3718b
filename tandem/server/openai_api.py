"""OpenAI's interface: chat and text completions, models, embeddings."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from tandem.client.answers import count_usage, new_seed
from tandem.errors import TandemError
from tandem.server.bodies import read_object
from tandem.server.completion_requests import (
    MODEL,
    UNTOLD,
    CompletionRequest,
    check_model,
    read_chat,
    read_prompt,
)
from tandem.server.completions import CHAT, TEXT, Completion, Shape
from tandem.server.errors import bad_request, failure, unsupported
from tandem.server.service import Service, service_of
from tandem.server.streams import EventStream, while_connected

router = APIRouter(prefix="/v1")
MAX_INPUTS = 2048
"""Texts of one request for embeddings, as OpenAI has it."""


@router.post("/chat/completions")
async def complete_chat(request: Request) -> Response:
    """Answer the last message of a conversation."""
    service = service_of(request)
    body = await read_object(request, service.limits.max_body_bytes)
    return await _complete(request, service, CHAT, read_chat(body, service.system_prompt))


@router.post("/completions")
async def complete_text(request: Request) -> Response:
    """Answer a prompt, which is the question."""
    service = service_of(request)
    body = await read_object(request, service.limits.max_body_bytes)
    return await _complete(request, service, TEXT, read_prompt(body))


@router.get("/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The model of all parties together, and the embedder."""
    return {"object": "list", "data": [_model(name) for name in _model_names(service_of(request))]}


@router.get("/models/{name:path}")
async def show_model(request: Request, name: str) -> dict[str, Any]:
    """One of them."""
    return _model(check_model({"model": name}, *_model_names(service_of(request))))


@router.post("/embeddings")
async def embed(request: Request) -> dict[str, Any]:
    """Unit vectors of texts, by the embedder of a party that runs here."""
    service = service_of(request)
    body = await read_object(request, service.limits.max_body_bytes)
    model = check_model(body, *_model_names(service)[1:])
    texts = _read_inputs(body)
    form = body.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise bad_request(
            f"encoding_format must be float or base64, but it is {form!r:.40}.", "encoding_format"
        )
    for name, value in body.items():
        if name not in ("model", "input", "encoding_format", *UNTOLD) and value is not None:
            raise unsupported(name, f"The option {name!r:.60} of embeddings is not supported; leave it out.")
    try:
        vectors = await while_connected(request.receive, service.embed(texts))
        num_tokens = await service.tandem.acount_tokens(*texts)
    except TandemError as error:
        raise failure(error) from None
    usage = count_usage(num_tokens, 0)
    return {
        "object": "list",
        "model": model,
        "data": [
            {"object": "embedding", "index": index, "embedding": _encode(vector, form)}
            for index, vector in enumerate(vectors)
        ],
        "usage": {name: usage[name] for name in ("prompt_tokens", "total_tokens")},
    }


async def _complete(request: Request, service: Service, shape: Shape, wanted: CompletionRequest) -> Response:
    """Respond once the answer has begun; until then whatever goes wrong is a response of its own."""
    if wanted.options.get("seed") is None:
        wanted.options["seed"] = new_seed()
    query = service.start(wanted.question, wanted.options, wanted.names)
    try:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(query.close)
            num_prompt_tokens = await service.tandem.acount_tokens(*wanted.texts)
            completion = Completion(shape, wanted, service.fingerprint, num_prompt_tokens)
            await while_connected(request.receive, query.fetch_first_token())
            if not wanted.is_stream:
                return JSONResponse(await while_connected(request.receive, completion.whole(query)))
            stack.pop_all()  # the response closes the query
            return EventStream(completion.chunks(query), query, service.limits.send_timeout_s)
    except TandemError as error:
        raise failure(error, wanted.names) from None


def _model_names(service: Service) -> list[str]:
    return [MODEL, *service.embedders]


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "tandem"}


def _read_inputs(body: dict[str, Any]) -> Sequence[str]:
    """The texts to embed. Raises ApiError."""
    given = body.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise bad_request(
            f"input must be a text or a list of texts, none of them empty, but it is {given!r:.60}.", "input"
        )
    if len(texts) > MAX_INPUTS:
        raise bad_request(f"input holds {len(texts)} texts, but a request has at most {MAX_INPUTS}.", "input")
    return texts


def _encode(vector: Sequence[float], form: str) -> Sequence[float] | str:
    """base64 is of little-endian float32."""
    if form == "float":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
