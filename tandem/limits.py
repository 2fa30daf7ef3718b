"""What is served to others, at most: to devices that join a cloud, and to clients of the HTTP server."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from tandem.validation import STRICT, Settings


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DevicesConfig(Settings):
    """What a cloud gives each of the devices that join it (`tandem cloud serve`)."""

    max_devices: int = Field(default=64, ge=1, description="devices connected at once, at most")
    max_queries: int = Field(
        default=4,
        ge=1,
        description="queries that one device asks at once, at most; the rest waits at the device",
    )
    max_answer_tokens: int = Field(default=4096, ge=1, description="length of an answer, in tokens")
    max_documents: int = Field(
        default=64, ge=0, description="documents that the cloud retrieves for one query"
    )
    max_question_bytes: int = Field(
        default=65536, ge=1, description="length of a question with its history and stop texts, in bytes"
    )
    max_bytes_per_s: int = Field(
        default=4 << 20,
        ge=1024,
        description="bytes that one device may send per second; what exceeds them waits",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class HttpConfig(Settings):
    """What the HTTP server gives its clients (`tandem serve`)."""

    max_queries: int = Field(
        default=64,
        ge=1,
        description="queries of HTTP clients open or waiting at once, at most; one more is refused with status 429",
    )
    max_body_bytes: int = Field(default=4_000_000, ge=1, description="size of a request, in bytes")
    max_document_bytes: int = Field(
        default=32_000_000,
        ge=1,
        description="size of a file that is added to the device's documents, in bytes",
    )
    send_timeout_s: float = Field(
        default=60.0, gt=0, description="longest wait for a client that does not read, in seconds"
    )
    drain_timeout_s: float = Field(
        default=30.0, gt=0, description="longest wait for open answers when the server is stopped, in seconds"
    )
