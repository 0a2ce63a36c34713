"""Both ways to make a mask's stream give the same words, and a process measures once which one it takes."""

from __future__ import annotations

import itertools
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.defenses._secure_aggregation import mask_streams, masks, primitives
from securefed.defenses._secure_aggregation.mask_streams import CHUNKS, PATHS, forced
from securefed.errors import ConfigError, DataError

MASK = masks.SignedMask(bytes(range(32)), 1)


@pytest.fixture
def not_measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A process whose streams are still to be measured, and the names of the threads that measure."""
    calls: list[str] = []

    def measure() -> dict[tuple[str, int], float]:
        calls.append(threading.current_thread().name)
        return {(path, chunk): 1.0 + (path == "CTR") + (chunk == CHUNKS[0]) for path in PATHS for chunk in CHUNKS}

    monkeypatch.setattr(mask_streams, "_choice", None)
    monkeypatch.setattr(mask_streams, "measure", measure)
    yield calls


@pytest.mark.parametrize("path", PATHS)
def test_the_words_are_those_of_the_gcm_specification_test_case_3(path: str) -> None:
    """McGrew and Viega, "The Galois/counter mode of operation (GCM)", appendix B: AES-128, the counter from 2."""
    key, nonce = bytes.fromhex("feffe9928665731c6d6a8f9467308308"), bytes.fromhex("cafebabefacedbaddecaf888")
    plain = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255"
    )
    cipher = (
        "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e"
        "21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985"
    )
    assert PATHS[path](key + nonce).update(plain).hex() == cipher
    assert PATHS[path](key + bytes(12)).update(plain).hex() != cipher


@pytest.mark.parametrize("path", PATHS)
def test_the_stream_is_counter_mode_from_two_and_from_no_other_block(path: str) -> None:
    seed, zeros = secrets.token_bytes(32), bytes(100_003)
    words = PATHS[path](seed).update(zeros)
    assert words == primitives.key_stream(seed[:28] + (2).to_bytes(4, "big")).update(zeros)
    assert words != primitives.key_stream(seed[:28] + (1).to_bytes(4, "big")).update(zeros)


@given(lengths=st.lists(st.integers(0, 5000), max_size=6), seed=st.binary(min_size=28, max_size=32))
def test_both_paths_are_equal_at_all_lengths_and_offsets(lengths: list[int], seed: bytes) -> None:
    streams = [start(seed) for start in PATHS.values()]
    parts = [[stream.update(bytes(length)) for length in lengths] for stream in streams]
    assert parts[0] == parts[1]
    assert b"".join(parts[0]) == PATHS["GCM"](seed).update(bytes(sum(lengths)))


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("sizes", [(9,), (4, 5), (33_000, 1, 40_001), (70_001,)])
def test_masks_are_equal_by_all_paths_and_chunks(dtype: type, sizes: tuple[int, ...]) -> None:
    low, high = masks.pair_mask(b"a" * 32, b"exchange", 2, 5), masks.pair_mask(b"b" * 32, b"exchange", 7, 5)
    found = []
    for path, chunk in itertools.product(PATHS, (8, 1 << 13, *CHUNKS)):
        if chunk == 8 and sum(sizes) > 100:
            continue  # one word at a time: slow, and the same at any length
        flats = [np.arange(size).astype(dtype) for size in sizes]
        with forced(path, chunk):
            masks.apply_masks(flats, [low, high, MASK])
        found.append(b"".join(flat.tobytes() for flat in flats))
    assert len(set(found)) == 1
    assert found[0] != b"".join(np.arange(size).astype(dtype).tobytes() for size in sizes)


def test_masks_of_two_clients_on_different_paths_cancel() -> None:
    low, high = masks.pair_mask(b"a" * 32, b"exchange", 2, 5), masks.pair_mask(b"a" * 32, b"exchange", 5, 2)
    flat = np.zeros(100_000, np.uint32)
    with forced("GCM", CHUNKS[0]):
        masks.apply_masks([flat], [low])
    assert flat.any()
    with forced("CTR", CHUNKS[1]):
        masks.apply_masks([flat], [high])
    assert not flat.any()


def test_a_process_measures_once_whichever_thread_is_first(not_measured: list[str]) -> None:
    together = threading.Barrier(8)

    def first() -> None:
        together.wait()
        mask_streams.mask_stream(bytes(32))

    threads = [threading.Thread(target=first) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(not_measured) == 1
    assert (mask_streams.choice().path, mask_streams.choice().chunk) == ("CTR", CHUNKS[0])  # the fastest of the four


def test_a_forced_path_is_not_measured_and_ends_with_its_block(not_measured: list[str]) -> None:
    with forced("GCM"):
        assert mask_streams.choice().path == "GCM"
        assert not not_measured
    assert mask_streams.choice().path == "CTR"
    for path, chunk in (("ECB", CHUNKS[0]), ("GCM", 2 * CHUNKS[1]), ("GCM", 12), ("GCM", 0)):
        with (
            pytest.raises(ConfigError, match=rf"no stream by '{path}' in chunks of {chunk} bytes"),
            forced(path, chunk),
        ):
            pass


def test_nothing_is_measured_at_import() -> None:
    code = (
        "import securefed.defenses._secure_aggregation.masks; "
        "from securefed.defenses._secure_aggregation import mask_streams as m; "
        "assert m._choice is None; m.mask_stream(bytes(32)); assert len(m._choice.speeds) == 4"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_stream_longer_than_its_counter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "LONGEST", 400)
    masks.apply_masks([np.zeros(100, np.uint32)], [MASK])
    with pytest.raises(DataError, match="404 bytes, and a mask's stream has 400 at most"):
        masks.apply_masks([np.zeros(101, np.uint32)], [MASK])
