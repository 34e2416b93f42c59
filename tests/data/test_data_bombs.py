"""Files that unpack to more than they promise, or promise more than any collection holds."""

import gzip
import struct
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxsolve.data import cifar10, mnist


KEY = jax.random.key(0)
IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
MOST = 30e6  # bytes that may be held on the way to a refusal
ROOT = Path(__file__).resolve().parents[2]


def _header(*sizes):
    return struct.pack(f">{1 + len(sizes)}I", 0x0800 + len(sizes), *sizes)


def _bomb(begin, zeros):
    """A gzip file of some bytes and very many zeros, packed about a thousand times."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    parts = [packer.compress(begin)]
    block = bytes(10**7)
    parts += [packer.compress(block) for _ in range(zeros // 10**7)]
    return b"".join([*parts, packer.flush()])


@pytest.fixture(scope="module")
def zeros():
    return _bomb(b"", 6 * 10**7)


def _refused(load, folder, message):
    """Refused with these words, and without holding much on the way."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message):
            load(n_train=5, n_test=0, path=folder, key=KEY)
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def _labels(folder, count=30):
    (folder / LABELS).write_bytes(gzip.compress(_header(count) + bytes(count)))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((30, 28, 28), "holds 23521 bytes or more after its header; the header's sizes 30 x 28 x 28 ask for 23520"),
        ((2**32 - 1, 28, 28), "its header asks for 4294967295 samples; at most 300000 are read"),
        ((30, 2**31, 28), "holds images of 2147483648 x 28 pixels; expected 28 x 28"),
        ((0, 28, 28), "must be positive"),
    ],
)
def test_images_that_are_a_bomb(tmp_path, sizes, message):
    _labels(tmp_path)
    (tmp_path / IMAGES).write_bytes(_bomb(_header(*sizes), 6 * 10**7))
    assert (tmp_path / IMAGES).stat().st_size < 10**6
    _refused(mnist, tmp_path, message)


def test_files_without_a_header_that_are_a_bomb(tmp_path, zeros):
    _labels(tmp_path)
    (tmp_path / IMAGES).write_bytes(zeros)
    _refused(mnist, tmp_path, "begins with the magic number 0")
    (tmp_path / LABELS).write_bytes(_bomb(_header(2**32 - 1), 6 * 10**7))
    _refused(mnist, tmp_path, "its header asks for 4294967295 samples")


def test_the_header_may_promise_what_a_collection_holds(tmp_path):
    """As many as in the largest; the images follow the labels, whose number is known then."""
    count = 280_000
    _labels(tmp_path, count)
    (tmp_path / IMAGES).write_bytes(gzip.compress(_header(5, 28, 28) + bytes(5 * 784)))
    with pytest.raises(ValueError, match="holds 5 images but .* holds 280000 labels"):
        mnist(n_train=5, n_test=0, path=tmp_path, key=KEY)


LIMITED = """
import resource, sys, jax
from jaxsolve.data import cifar10
lines = open("/proc/self/status").read().splitlines()
data = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (data + 10**9, data + 10**9))
try:
    cifar10(n_train=5, n_test=0, path=sys.argv[1], key=jax.random.key(0))
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_file_of_cifar_that_is_a_bomb(tmp_path):
    """2 GB of zeros in 9 MB; records of zeros are images of class 0, so that only their number is wrong."""
    (tmp_path / "data_batch_1.bin.gz").write_bytes(_bomb(b"", 2 * 10**9))
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert "holds more than 60000 images, which no file of CIFAR-10 does" in done.stdout, done.stderr


def test_a_plain_file_is_read_no_further_than_it_promises(tmp_path):
    """A sparse file of 100 GB takes no room on the disk, and would take all memory."""
    _labels(tmp_path)
    with (tmp_path / IMAGES.removesuffix(".gz")).open("wb") as file:
        file.write(_header(30, 28, 28))
        file.truncate(10**11)
    _refused(mnist, tmp_path, "holds 23521 bytes or more after its header")
    record = np.zeros(3073, np.uint8).tobytes()
    (tmp_path / "data_batch_1.bin").write_bytes(record * 3)
    assert cifar10(n_train=3, n_test=0, path=tmp_path, key=KEY).x.shape == (3, 3072)


def test_a_path_that_is_none(as_users):
    with pytest.raises(TypeError, match="path must be that of the folder with the files of MNIST, got int 3"):
        mnist(n_train=5, path=3, key=KEY)  # pyright: ignore[reportArgumentType]


def test_what_serves_with_only_the_test_files_comes_first(tmp_path):
    for name in (IMAGES, LABELS):
        sizes = (5, 28, 28) if name == IMAGES else (5,)
        content = gzip.compress(_header(*sizes) + bytes(int(np.prod(sizes))))
        (tmp_path / name.replace("train", "t10k")).write_bytes(content)
    with pytest.raises(FileNotFoundError, match="has no training files. official_split=False draws training and test"):
        mnist(n_train=3, path=tmp_path, key=KEY)
    assert mnist(n_train=3, official_split=False, path=tmp_path, key=KEY).x_test is not None
