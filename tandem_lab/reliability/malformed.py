"""Frames that were changed at random, through the parser and through a connection of a device that has gone mad."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import psutil

from tandem.client.tandem import Tandem
from tandem.config.schema import Config
from tandem.errors import ProtocolError
from tandem.joining.handshakes import CLOUD_QUEUE, DeviceHandshake, new_instance
from tandem.joining.join_link import JoinLink, client_context
from tandem.messages import LinkFrame, decode_link
from tandem.transport.port import Endpoint, FrameSplitter, join_frames
from tandem.transport.sockets import SocketPlane
from tandem_lab.reliability.bench import Bench
from tandem_lab.reliability.hostile import DeafQueue
from tandem_lab.tally import listening_queue

EXTREMES = (b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff" * 9 + b"\x01", b"\xff\xff\xff\xff\x0f", b"\x80" * 12)
"""Bytes that are the ends of a varint's range, or none."""
BATCH = 500
"""Frames per write, so that nothing has to be dropped."""
MAX_UNSENT_BYTES = 1 << 18
SENDING_LIMIT_S = 60.0
MIN_FRAMES_PER_S = 2000
"""A cloud that reads fewer is given up."""
STREAM_SHARE = 0.01
"""Of the frames, how many also go through the splitter as a stream that was changed."""


def record_frames(seed: int = 0) -> list[bytes]:
    """The frames of a device in real answers, one of each mode."""
    frames: list[bytes] = []

    def listen(frame: LinkFrame, encoded: bytes) -> None:
        frames.append(encoded)

    classes: Any = {"draft_queue": listening_queue("device", listen)}
    with Tandem.launch(Config(), runtime="inline", actor_classes=classes) as tandem:
        asked: tuple[Any, ...] = ({}, {"placement": "device"}, {"mode": "speculative"})
        for options in asked:
            tandem.query("Which game should Mira try?", seed=seed, max_new_tokens=24, **options)
    return frames


def mutations(frames: Sequence[bytes], num_frames: int, random: Random) -> Iterator[bytes]:
    """Valid frames with one to three changes each."""
    for _ in range(num_frames):
        frame = bytearray(random.choice(frames))
        for _ in range(random.randrange(1, 4)):
            _change(frame, frames, random)
        yield bytes(frame)


def _change(frame: bytearray, frames: Sequence[bytes], random: Random) -> None:
    at = random.randrange(len(frame) + 1)
    match random.randrange(6):
        case 0 if frame:
            frame[at % len(frame)] ^= 1 << random.randrange(8)
        case 1:
            del frame[at:]
        case 2:
            frame[at:at] = random.randbytes(random.randrange(1, 9))
        case 3:
            extreme = random.choice(EXTREMES)
            frame[at : at + random.randrange(len(extreme) + 1)] = extreme
        case 4:
            frame[at:] = random.choice(frames)[at:]
        case _:
            del frame[at : at + random.randrange(1, 9)]


def parse(frames: Sequence[bytes], num_frames: int, random: Random) -> dict[str, Any]:
    """Decode changed frames; whatever is not a ProtocolError is a fault, and is raised."""
    num_read = num_refused = num_streams = 0
    process = psutil.Process()
    before, start_s = process.memory_info().rss, time.monotonic()
    for frame in mutations(frames, num_frames, random):
        try:
            decode_link(frame)
            num_read += 1
        except ProtocolError:
            num_refused += 1
        if random.random() < STREAM_SHARE:
            num_streams += 1
            _split(bytearray(join_frames([frame] * 3)), random)
    return {
        "num_frames": num_frames,
        "read": num_read,
        "refused": num_refused,
        "streams": num_streams,
        "grown_mb": (process.memory_info().rss - before) / 1e6,
        "us_per_frame": 1e6 * (time.monotonic() - start_s) / num_frames,
    }


def _split(stream: bytearray, random: Random) -> None:
    """A changed stream in pieces of random sizes."""
    _change(stream, [bytes(stream)], random)
    splitter, at = FrameSplitter(), 0
    try:
        while at < len(stream):
            size = random.randrange(1, 64)
            splitter.feed(bytes(stream[at : at + size]))
            at += size
    except ProtocolError:
        pass


def send(
    bench: Bench, link: JoinLink, frames: Sequence[bytes], num_frames: int, random: Random
) -> dict[str, Any]:
    """Send changed frames as a device with this link, while another device asks; what the cloud made of them."""
    before = bench.cloud.measure()
    question, seed = bench.questions[0], 0
    whole = bench.whole_answer(question, seed)
    start_s = time.monotonic()
    last_s = start_s + SENDING_LIMIT_S + num_frames / MIN_FRAMES_PER_S

    def is_read() -> bool:
        """Whether the cloud has read all of them, or will not any more."""
        return _received(bench.cloud.measure()) - _received(before) >= num_frames or time.monotonic() > last_s

    asyncio.run(_send(link, mutations(frames, num_frames, random), is_read))
    sent_s = time.monotonic() - start_s
    watched = bench.ask(question, seed, policy="wait")
    after = bench.cloud.measure()
    return {
        "num_frames": num_frames,
        "received": _received(after) - _received(before),
        "malformed": after["malformed"] - before["malformed"],
        "foreign": after["foreign"] - before["foreign"],
        "rss_mb": [before["rss_bytes"] / 1e6, after["rss_bytes"] / 1e6],
        "files": [before["files"], after["files"]],
        "is_right": watched.matches(whole),
        "frames_per_s": num_frames / sent_s,
    }


def _received(measured: dict[str, Any]) -> int:
    """Of devices other than the first."""
    return sum(count for name, count in measured["received_frames"].items() if name != "@device/draft_queue")


async def _send(link: JoinLink, frames: Iterator[bytes], is_read: Callable[[], bool]) -> None:
    """Until all are read: what is still under way when a connection is dropped is lost."""
    instance = new_instance()
    plane = SocketPlane(
        DeafQueue(),
        handshake=lambda dials, crosses: DeviceHandshake(link, instance, lambda about: None),
        client_tls=client_context(),
    )
    await plane.start()
    await plane.connect(Endpoint(CLOUD_QUEUE, None, link.host, link.port))
    for number, frame in enumerate(frames):
        plane.send(CLOUD_QUEUE, frame)
        if number % BATCH == BATCH - 1:
            await _flush(plane)
    await _flush(plane)
    while not await asyncio.to_thread(is_read):  # noqa: ASYNC110 - it asks another process
        await asyncio.sleep(0.1)
    await plane.close()


async def _flush(plane: SocketPlane) -> None:
    """Write, and wait until little is left to send. Raises TimeoutError where the cloud reads no more."""
    plane.flush()
    async with asyncio.timeout(SENDING_LIMIT_S):
        while True:
            connection = plane.connection_to(CLOUD_QUEUE)
            transport = None if connection is None else connection.transport
            if transport is not None and transport.get_write_buffer_size() <= MAX_UNSENT_BYTES:
                return
            await asyncio.sleep(0.002)
