"""The two frames with which a device joins a cloud, inside TLS, and the cloud's description of itself in them.

    device --Hello--> cloud
    device <--Welcome or Refused-- cloud

JSON objects, so that a later version can add to them; what an end does not know it ignores. A refusal is a word, not a
sentence: what the device's user reads is composed here, never by the cloud.

Where the two have different vocabularies and both can answer in pieces, two more follow:

    device --Choice--> cloud
    device <--Offer, and its vocabulary if the device lacks it-- cloud
    device --its vocabulary if the cloud lacks it--> cloud

Who has received a vocabulary lists the pieces first; until then the device is refused for now, and comes back.

Hello also has a random id of the device's process, its *instance*. A process that dials again, from another address
perhaps, takes the place of its own connection; another process with the same link waits until that one has ended.
"""

from __future__ import annotations

import json
import secrets
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import Field, TypeAdapter, ValidationError

from tandem.errors import ProtocolError
from tandem.joining.join_link import Device, JoinLink, check_certificate
from tandem.messages import OLDEST_VERSION, PROTOCOL_VERSION, describe_versions, have_common
from tandem.transport.port import Refusal, Refused

Word = Annotated[str, Field(max_length=300)]


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """What a device needs to know of a cloud's actors; "" and None where the cloud has nothing to say."""

    protocol_version: int  # the newest
    oldest_version: int | None = None  # None: the same
    vocabulary_fingerprint: Word
    tokenizer: Word
    vocabulary_prefixes: Annotated[list[Word], Field(max_length=64)] = field(default_factory=list)
    template_fingerprint: Word = ""
    writes_day: bool = False
    weights_fingerprint: Word
    codec: Word
    race_depth: Annotated[int, Field(ge=0, le=1 << 20)]
    policy: Word
    length_policy: Word
    vocab_size: Annotated[int, Field(ge=1)]
    eos_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=64)]
    context_length: Annotated[int, Field(ge=1)]
    num_documents: Annotated[int, Field(ge=0)]
    has_grammars: bool = False
    decode_line: Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(max_length=8)]
    embedder_fingerprint: Word | None = None
    scorer_fingerprint: Word | None = None
    factory: Word = ""  # of its index; only whether there is one matters
    corpus: Word | None = None  # documents that come with Tandem, by their name; "": its own
    max_queries: Annotated[int, Field(ge=1)] | None = None  # that a device may ask at once
    pieces_digest: Word = ""  # of its vocabulary as `Exchange` sends it; "": it cannot answer in pieces

    def as_description(self) -> dict[str, Any]:
        """As actors describe themselves; what is not known is left out."""
        return {key: value for key, value in asdict(self).items() if value is not None}


_ABOUT = TypeAdapter(About)


def describe_publicly(description: Mapping[str, Any]) -> dict[str, Any]:
    """The part of what a cloud's actors report that its devices may know."""
    public = {one.name for one in fields(About)}
    return {key: value for key, value in description.items() if key in public}


def read_about(description: Mapping[str, Any]) -> About:
    """Read a cloud's description of itself. Raises ProtocolError."""
    try:
        return _ABOUT.validate_json(json.dumps(dict(description)), strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))[:60]
        raise ProtocolError(
            f"The cloud describes itself in a way that this device does not understand, at {where!r}; install the same "
            "version of Tandem on both."
        ) from None


JOINING_VERSION = 1
"""Of these frames; those of sessions have a version of their own."""
MAX_HELLO_BYTES = 1024
MAX_WELCOME_BYTES = 16 * 1024
MAX_RETRY_AFTER_S = 3600.0
IN_USE_S = 5.0
"""When a process may come back while another one uses its link; one that vanished is noticed after 25 s."""
LISTING_S = 1.0
"""When a device may come back while pieces are being listed, which takes so long."""
INSTANCE_BYTES = 8
CLOUD_QUEUE = "cloud/draft_queue"
REFUSALS: Mapping[str, str] = {
    "stranger": "The cloud at {address} does not know the token of this join link; ask its owner for a new link.",
    "revoked": "The cloud at {address} has revoked this join link; ask its owner for a new one.",
    "version": "The cloud at {address} speaks another version of Tandem's protocol (it has {value:g}, this device "
    "{own}); install the same version of Tandem on both.",
    "busy": "The cloud at {address} is busy; retry after {value:g} s.",
    "in_use": "This link to the cloud at {address} is in use by another process; stop that one, or give this one a "
    "link of its own (`tandem cloud add NAME`).",
}
"""What the user of a refused device reads."""
FOR_NOW = ("busy", "in_use")
"""Refusals that say when to come back."""


class RetryLater(NamedTuple):
    """Why a device cannot be taken now."""

    word: str  # of FOR_NOW
    retry_after_s: float


VOCABULARY_BYTES = 4 << 20
"""Most of a vocabulary as it is sent; the largest of today has 0.8 MB."""


@dataclass(frozen=True)
class Exchange:
    """What a device does about a cloud of another vocabulary, so that both answer in pieces."""

    own: bytes  # vocabulary, as of `tandem.engine.pieces.pack`
    wanted: str  # digest of the cloud's; "": it is here
    learn: Callable[[bytes], None]  # takes the cloud's. Raises Refused, to come back once it is read


def digest_of(vocabulary: bytes) -> str:
    """By which it is known whether a vocabulary is there: 32 hexadecimal digits."""
    return sha256(vocabulary).hexdigest()[:32]


class Transfer:
    """A vocabulary that comes in frames."""

    def __init__(self, size: Any, digest: Any) -> None:
        """Both as the other end says. Raises ProtocolError."""
        if not (type(size) is int and 0 < size <= VOCABULARY_BYTES and isinstance(digest, str)):
            raise ProtocolError(
                f"A vocabulary of 1 to {VOCABULARY_BYTES} bytes was to be exchanged, not of {size!r:.40}; install the "
                "same version of Tandem on both."
            )
        self._size, self._digest, self._received = size, digest, bytearray()

    def add(self, frame: bytes) -> bytes | None:
        """Take a frame; the vocabulary once it is whole. Raises ProtocolError for another one."""
        self._received += frame
        if len(self._received) < self._size:
            return None
        if digest_of(vocabulary := bytes(self._received)) != self._digest:
            raise ProtocolError("A vocabulary arrived damaged; connect again.")
        return vocabulary


def _cut(vocabulary: bytes, size: int) -> list[bytes]:
    return [vocabulary[start : start + size] for start in range(0, len(vocabulary), size)]


class AdmissionPort(Protocol):
    """The port by which a cloud decides who may join."""

    @property
    def about(self) -> Mapping[str, Any] | None:
        """The cloud's description for admitted devices."""

    @property
    def vocabulary(self) -> bytes:
        """The cloud's, for devices with another one; empty: it cannot answer in pieces."""

    def has_listed(self, device: Device, digest: str) -> bool | None:
        """Whether the pieces of a device's vocabulary are listed; None: it is not here. Raises ProtocolError."""

    def learn(self, vocabulary: bytes) -> None:
        """Take a device's vocabulary, and list its pieces soon."""

    def recognise(self, secret: bytes) -> Device | None:
        """The device with a secret, also one that was revoked."""

    def admit(self, device: Device, instance: str) -> RetryLater | None:
        """Let a process of a device in; or why it cannot be taken now."""

    def note_refusal(self, error: ProtocolError) -> None:
        """A connection is refused."""


class Leases:
    """The process that has each device's link: while its connection lives, no other takes its place."""

    def __init__(self, is_connected: Callable[[str], bool]) -> None:
        """is_connected: whether the draft queue of this name has a connection."""
        self._is_connected = is_connected
        self._instances: dict[str, str] = {}  # the latest of each device

    def acquire(self, device: str, instance: str) -> RetryLater | None:
        """Give a process the device's link, unless another one has it."""
        if self._instances.get(device) != instance and self._is_connected(queue_of(device)):
            return RetryLater("in_use", IN_USE_S)
        self._instances[device] = instance
        return None


class DeviceHandshake:
    """The device's end: first the cloud's certificate, then the token, which nobody else gets to see."""

    max_frame_bytes = MAX_WELCOME_BYTES

    def __init__(
        self,
        link: JoinLink,
        instance: str,
        on_welcome: Callable[[dict[str, Any]], Exchange | None],
        vocabulary: str = "",
    ) -> None:
        """instance: of this process; on_welcome: called with what the cloud says of itself; vocabulary: the
        fingerprint of the device's own."""
        self._link = link
        self._instance = instance
        self._on_welcome = on_welcome
        self._vocabulary = vocabulary
        self._exchange: Exchange | None = None
        self._transfer: Transfer | None = None

    def begin(self, certificate: bytes | None) -> list[bytes]:
        """Hello. Raises ProtocolError for another cloud's certificate."""
        check_certificate(certificate, self._link.fingerprint, self._link.address)
        return [hello_of(self._link, self._instance, self._vocabulary)]

    def receive(self, frame: bytes) -> tuple[list[bytes], str | None]:
        """Welcome, what follows it, or Refused. Raises Refused, or ProtocolError for neither."""
        if self._transfer is not None and self._exchange is not None:
            if (vocabulary := self._transfer.add(frame)) is not None:
                self._transfer = None
                self._exchange.learn(vocabulary)
            return [], None
        answer = _unpack(frame, f"The cloud at {self._link.address}")
        if isinstance(answer.get("refused"), str):
            raise self._refused(answer)
        if self._exchange is not None:
            return self._follow_offer(answer, self._exchange)
        about = answer.get("about")
        if not isinstance(about, dict):
            raise ProtocolError(
                f"The cloud at {self._link.address} answered neither yes nor no; install the same version of Tandem on "
                "both."
            )
        self._exchange = self._on_welcome(about)
        is_equal = self._vocabulary in ("", about.get("vocabulary_fingerprint"))
        if is_equal or not about.get("pieces_digest"):
            return [], CLOUD_QUEUE
        if self._exchange is None:  # all tokens that count are the same
            return [_pack(tandem=JOINING_VERSION)], CLOUD_QUEUE
        own, wanted = self._exchange.own, self._exchange.wanted
        choice = _pack(tandem=JOINING_VERSION, pieces=digest_of(own), size=len(own), wants=wanted)
        return [choice], None

    def _follow_offer(self, offer: Mapping[str, Any], exchange: Exchange) -> tuple[list[bytes], str | None]:
        if exchange.wanted:
            self._transfer = Transfer(offer.get("size"), exchange.wanted)
        frames = _cut(exchange.own, MAX_HELLO_BYTES) if offer.get("wants") else []
        return frames, None if frames or exchange.wanted else CLOUD_QUEUE

    def _refused(self, answer: Mapping[str, Any]) -> Refused:
        word: str = answer["refused"]
        value: Any = answer.get("value")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        number = float(value) if is_number and abs(value) <= sys.float_info.max else 0.0
        if word not in REFUSALS:
            return Refused(
                f"The cloud at {self._link.address} refused this device for a reason that this version of Tandem does "
                f"not know ({word!r:.40}); install the same version on both."
            )
        if word in FOR_NOW:
            number = min(max(number, 0.0), MAX_RETRY_AFTER_S)
        sentence = REFUSALS[word].format(address=self._link.address, value=number, own=PROTOCOL_VERSION)
        return Refused(sentence, number if word in FOR_NOW else None)


class CloudHandshake:
    """The cloud's end. Who connects has shown nothing yet; a few bytes are read, and one answer is given."""

    max_frame_bytes = MAX_HELLO_BYTES

    def __init__(self, admission: AdmissionPort) -> None:
        self._admission = admission
        self._device: Device | None = None  # that was told Welcome, and has to choose
        self._transfer: Transfer | None = None

    def begin(self, certificate: bytes | None) -> list[bytes]:
        """The device speaks first."""
        return []

    def receive(self, frame: bytes) -> tuple[list[bytes], str | None]:
        """Welcome, and the device's name as that of its draft queue. Raises Refusal or ProtocolError."""
        try:
            return self._receive(frame) if self._device is None else self._share(frame, self._device)
        except ProtocolError as error:
            if self._device is None or not isinstance(error, Refusal):  # else it comes back in a moment
                self._admission.note_refusal(error)
            raise

    def _receive(self, frame: bytes) -> tuple[list[bytes], str | None]:
        hello = _unpack(frame, "What connects")
        try:
            secret = b64decode(hello.get("secret", ""), validate=True)
        except (TypeError, ValueError):
            raise ProtocolError("What connects shows no token; use a join link.") from None
        device = self._admission.recognise(secret)
        if device is None:
            raise _refusal("A token that this cloud has not given out was shown.", "stranger")
        if not device.is_welcome:
            raise _refusal(f"The device {device.name!r} was revoked on {device.revoked}.", "revoked")
        newest: Any = hello.get("protocol")
        oldest: Any = hello.get("oldest", newest)
        is_range = isinstance(newest, int) and isinstance(oldest, int)
        is_spoken = is_range and have_common((OLDEST_VERSION, PROTOCOL_VERSION), (oldest, newest))
        if hello.get("tandem") != JOINING_VERSION or not is_spoken:
            raise _refusal(
                f"The device {device.name!r} speaks other versions of the protocol ({oldest!r:.20} to {newest!r:.20}, "
                f"this cloud {describe_versions()}).",
                "version",
                PROTOCOL_VERSION,
            )
        instance = hello.get("instance")
        later = self._admission.admit(device, instance if isinstance(instance, str) else "")
        if later is not None:
            raise _refusal(f"The device {device.name!r} cannot be taken now ({later.word}).", *later)
        about = dict(self._admission.about or {})
        welcome = _pack(tandem=JOINING_VERSION, about=about)
        is_equal = hello.get("vocabulary") in (None, about.get("vocabulary_fingerprint"))
        if is_equal or not self._admission.vocabulary:
            return [welcome], queue_of(device.name)
        self._device = device
        return [welcome], None

    def _share(self, frame: bytes, device: Device) -> tuple[list[bytes], str | None]:
        """Choice, or a part of the device's vocabulary."""
        if self._transfer is not None:
            if (vocabulary := self._transfer.add(frame)) is not None:
                self._admission.learn(vocabulary)
                raise self._not_yet(device)
            return [], None
        choice, own = _unpack(frame, "What connects"), self._admission.vocabulary
        digest = choice.get("pieces")
        if digest is None:
            return [], queue_of(device.name)
        is_listed = self._admission.has_listed(device, str(digest))
        if is_listed is False:
            raise self._not_yet(device)
        if is_listed is None:
            self._transfer = Transfer(choice.get("size"), digest)
        parts = _cut(own, MAX_WELCOME_BYTES) if choice.get("wants") else []
        offer = _pack(tandem=JOINING_VERSION, size=len(own), wants=is_listed is None)
        return [offer, *parts], None if is_listed is None else queue_of(device.name)

    @staticmethod
    def _not_yet(device: Device) -> Refusal:
        return _refusal(f"The pieces of the device {device.name!r} are being listed.", "busy", LISTING_S)


def new_instance() -> str:
    """A random id of a process that joins, always of the same length."""
    return secrets.token_hex(INSTANCE_BYTES)


def hello_of(link: JoinLink, instance: str = "", vocabulary: str = "") -> bytes:
    """The hello by which a device introduces itself to the cloud of its link. instance: of its process. vocabulary: its
    fingerprint, where the device can answer in pieces."""
    secret = b64encode(link.secret).decode()
    versions = {"protocol": PROTOCOL_VERSION, "oldest": OLDEST_VERSION}
    shares = {"vocabulary": vocabulary} if vocabulary else {}
    return _pack(tandem=JOINING_VERSION, **versions, secret=secret, instance=instance, **shares)


def queue_of(device: str) -> str:
    """The name that a cloud gives the draft queue of one of its devices; no party is called so."""
    return f"@{device}/draft_queue"


def _refusal(sentence: str, word: str, value: float | None = None) -> Refusal:
    return Refusal(sentence, _pack(tandem=JOINING_VERSION, refused=word, value=value))


def _pack(**fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _unpack(frame: bytes, who: str) -> dict[str, Any]:
    try:
        fields = json.loads(frame)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or "tandem" not in fields:
        raise ProtocolError(f"{who} does not speak Tandem ({frame[:12]!r}); check address and port.")
    return fields
