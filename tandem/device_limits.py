"""The section [devices]: what a cloud gives each of the devices that join it."""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from tandem.validation import STRICT, Settings


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DevicesConfig(Settings):
    """What a cloud gives each of the devices that join it (`tandem cloud serve`)."""

    max_devices: int = Field(default=64, ge=1, description="devices connected at once, at most")
    max_queries: int = Field(
        default=4, ge=1, description="queries that one device has open or waiting at once, at most"
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
