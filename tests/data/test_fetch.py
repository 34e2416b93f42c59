"""Fetching files: over real HTTP from a server of this test, which breaks off and lies."""

import gzip
import hashlib
import http.server
import io
import sys
import tarfile
import threading

import jax.random as jr
import numpy as np
import pytest

import jaxsolve as js
from jaxsolve.data import Images
from tests.inside import app, fetching


def _idx(*shape):
    """An IDX file of zeros."""
    header = (0x0800 + len(shape)).to_bytes(4, "big") + b"".join(size.to_bytes(4, "big") for size in shape)
    return header + bytes(int(np.prod(shape)))


MNIST = {
    "train-images-idx3-ubyte": _idx(20, 28, 28),
    "train-labels-idx1-ubyte": _idx(20),
    "t10k-images-idx3-ubyte": _idx(10, 28, 28),
    "t10k-labels-idx1-ubyte": _idx(10),
}


class Server:
    """Serves files, and keeps what was asked of it.

    Attributes:
        breaks: the bytes after which an answer breaks off, or None.
        address: where it answers.
    """

    def __init__(self, files):
        self.files, self.asked, self.breaks, self.address = files, [], None, ""


@pytest.fixture
def server():
    served = Server({})

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802 (the name is the library's)
            name = self.path.rpartition("/")[2]
            served.asked.append(name)
            content = served.files.get(name)
            if content is None:
                return self.send_error(404)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: served.breaks])

        def log_message(self, format, *args):  # noqa: A002 (the name is the library's)
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        served.address = f"http://127.0.0.1:{made.server_address[1]}/"
        yield served
        made.shutdown()


@pytest.fixture
def mnist(server, monkeypatch):
    _publish(server, monkeypatch, Images.MNIST, MNIST)
    return server


def _publish(server, monkeypatch, images, files):
    server.files |= files
    published = tuple(fetching.Published(name, hashlib.sha256(content).hexdigest()) for name, content in files.items())
    source = fetching.SOURCES[images]._replace(addresses=(server.address,), files=published)
    monkeypatch.setitem(fetching.SOURCES, images, source)


def test_what_is_fetched_is_read(mnist, tmp_path):
    seen = []
    place = js.data.fetch(Images.MNIST, tmp_path, progress=lambda *known: seen.append(known))
    assert place == tmp_path / "mnist"
    assert sorted(file.name for file in place.iterdir()) == sorted(MNIST)
    assert seen[0] == ("train-images-idx3-ubyte", len(MNIST["train-images-idx3-ubyte"]), seen[0][1])
    assert js.data.mnist(n_train=20, n_test=10, path=tmp_path, key=jr.key(0)).x.shape == (20, 784)
    mnist.asked.clear()
    js.data.fetch(Images.MNIST, tmp_path)
    assert mnist.asked == []


def test_it_goes_where_the_readers_look(mnist, tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSOLVE_DATA", str(tmp_path))
    js.data.fetch(Images.MNIST)
    assert js.data.mnist(n_train=20, n_test=10, key=jr.key(0)).x.shape == (20, 784)


def test_nothing_is_kept_of_what_broke_off(mnist, tmp_path, as_users):
    mnist.breaks = 1000
    with pytest.raises(ConnectionError, match=r"MNIST: no answer from .*1000 bytes read.* Try again"):
        js.data.fetch(Images.MNIST, tmp_path)
    assert not list((tmp_path / "mnist").iterdir())
    mnist.breaks = None
    place = js.data.fetch(Images.MNIST, tmp_path)
    assert {name: (place / name).read_bytes() for name in MNIST} == MNIST


def test_a_file_may_not_be_larger_than_any_of_a_collection(mnist, tmp_path, monkeypatch, as_users):
    monkeypatch.setattr(fetching, "LARGEST", 5000)
    monkeypatch.setattr(fetching, "BLOCK", 1000)
    seen = []
    with pytest.raises(ConnectionError, match="it is larger than any file of this collection"):
        js.data.fetch(Images.MNIST, tmp_path, progress=lambda *known: seen.append(known))
    assert max(done for _, done, _ in seen) <= 5000
    assert not list((tmp_path / "mnist").iterdir())


def test_another_file_is_not_kept(mnist, tmp_path, as_users):
    mnist.files = {name: content[:-1] + b"\1" for name, content in MNIST.items()}
    with pytest.raises(ValueError, match="is not the one that was published"):
        js.data.fetch(Images.MNIST, tmp_path)
    assert not list((tmp_path / "mnist").iterdir())


def test_the_next_address_serves(mnist, tmp_path, monkeypatch):
    source = fetching.SOURCES[Images.MNIST]
    closed = "http://127.0.0.1:9/"  # the port that discards: nobody listens
    monkeypatch.setitem(fetching.SOURCES, Images.MNIST, source._replace(addresses=(closed, *source.addresses)))
    assert len(list(js.data.fetch(Images.MNIST, tmp_path).iterdir())) == 4


def test_an_address_that_sends_something_else_is_passed_over(mnist, tmp_path, monkeypatch, as_users):
    """Such as a domain that was moved, which answers everything with a page of its own."""
    source = fetching.SOURCES[Images.MNIST]
    mnist.files |= {f"parked/{name}": b"<html>" for name in MNIST}
    parked = f"{mnist.address}parked/"
    monkeypatch.setitem(fetching.SOURCES, Images.MNIST, source._replace(addresses=(parked, *source.addresses)))
    place = js.data.fetch(Images.MNIST, tmp_path)
    assert {name: (place / name).read_bytes() for name in MNIST} == MNIST


def test_plain_files_are_not_fetched_packed(server, tmp_path, monkeypatch):
    packed = {f"{name}.gz": gzip.compress(content) for name, content in MNIST.items()}
    _publish(server, monkeypatch, Images.MNIST, packed)
    (tmp_path / "mnist").mkdir()
    for name, content in MNIST.items():
        (tmp_path / "mnist" / name).write_bytes(content)
    js.data.fetch(Images.MNIST, tmp_path)
    assert server.asked == []


def test_without_pooch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ModuleNotFoundError, match="fetching images needs pooch, which is not installed: pip install"):
        js.data.fetch(Images.MNIST, tmp_path)


def test_without_a_network(tmp_path, monkeypatch, as_users):
    source = fetching.SOURCES[Images.CIFAR10]._replace(addresses=("http://127.0.0.1:9/",))
    monkeypatch.setitem(fetching.SOURCES, Images.CIFAR10, source)
    with pytest.raises(
        ConnectionError, match=r"CIFAR-10: no answer from .*cifar-10-binary.tar.gz .*or download the files"
    ):
        js.data.fetch(Images.CIFAR10, tmp_path)


# Archives


def _archive(members):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


BATCHES = [f"data_batch_{index}.bin" for index in range(1, 6)] + ["test_batch.bin"]


def test_an_archive_puts_files_where_they_belong_and_nowhere_else(server, monkeypatch, tmp_path):
    images = bytes(3073 * 4)
    outside = tmp_path / "outside"
    outside.write_text("as it was")
    members = [(f"cifar-10-batches-bin/{name}", images) for name in BATCHES]
    members += [
        ("../outside", b"changed"),
        (str(outside), b"changed"),
        ("../../data_batch_1.bin", images),  # a name that is wanted, of a place that is not
        ("cifar-10-batches-bin/readme.html", b"<script>"),
        ("test_batch.bin", str(outside)),
    ]
    _publish(server, monkeypatch, Images.CIFAR10, {"cifar-10-binary.tar.gz": _archive(members)})
    place = js.data.fetch(Images.CIFAR10, tmp_path / "data")
    assert sorted(file.name for file in place.iterdir()) == sorted(BATCHES)
    assert not any(file.is_symlink() for file in place.iterdir())
    assert outside.read_text() == "as it was"
    assert js.data.cifar10(n_train=20, n_test=4, path=place, key=jr.key(0)).x.shape == (20, 3072)
    server.asked.clear()
    js.data.fetch(Images.CIFAR10, tmp_path / "data")
    assert server.asked == []


# The command


def test_the_command(mnist, tmp_path, capsys):
    app(["data", "fetch", "mnist", "-o", str(tmp_path), "--quiet"], result_action="return_value")
    assert capsys.readouterr().out == f"{tmp_path / 'mnist'}\n"
    with pytest.raises(ValueError, match="name collections: mnist, fashion_mnist, cifar10"):
        app(["data", "fetch"], result_action="return_value")


def test_images_are_a_type(tmp_path, as_users):
    with pytest.raises(TypeError, match=r"images must be one of js.data.Images, such as Images.MNIST, got str 'mnist'"):
        js.data.fetch("mnist", tmp_path)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("images", list(Images))
def test_every_file_of_a_collection_is_published(images):
    source = fetching.SOURCES[images]
    names = {file.name.removesuffix(".gz") for file in source.files}
    wanted = {name for group in source.collection.train + source.collection.test for name in group}
    assert names == wanted or names == {"cifar-10-binary.tar"}
    assert all(len(file.sha256) == 64 for file in source.files)
    assert all(address.endswith("/") for address in source.addresses)
