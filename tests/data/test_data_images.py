import gzip
import os
import struct
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsolve.data import cifar10, fashion_mnist, mnist, pca


KEY = jax.random.key(0)
TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
REAL = Path(os.environ.get("JAXSOLVE_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


@pytest.fixture(autouse=True)
def _empty_home(tmp_path, monkeypatch):
    """No test finds files of the machine by accident."""
    monkeypatch.delenv("JAXSOLVE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _test(data):
    assert data.test is not None
    return data.test


def _idx(array):
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()


def _write(path, content, packed=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    if packed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


def _mnist_arrays(n, first=0):
    """Image i carries its own number in the first pixel and its label in the last."""
    images = np.zeros((n, 28, 28), np.uint8)
    images[:, 0, 0] = np.arange(first, first + n)
    labels = (np.arange(n) % 10).astype(np.uint8)
    images[:, 27, 27] = labels
    return images, labels


def _write_mnist(folder, n_train=30, n_test=20, packed=False):
    for names, (images, labels) in (
        ((TRAIN_IMAGES, TRAIN_LABELS), _mnist_arrays(n_train)),
        ((TEST_IMAGES, TEST_LABELS), _mnist_arrays(n_test, first=n_train)),
    ):
        if len(images):
            _write(folder / names[0], _idx(images), packed)
            _write(folder / names[1], _idx(labels), packed)
    return folder


def _cifar_records(n, first=0):
    images = np.zeros((n, 3, 32, 32), np.uint8)
    images[:, 0, 0, 0] = np.arange(first, first + n)
    images[:, 2, 31, 5] = 255
    labels = (np.arange(n) % 10).astype(np.uint8)
    return np.concatenate([labels[:, None], images.reshape(n, -1)], axis=1)


def _write_cifar(folder, batches=(1, 2)):
    for i in batches:
        _write(folder / f"data_batch_{i}.bin", _cifar_records(20, 20 * (i - 1)).tobytes())
    _write(folder / "test_batch.bin", _cifar_records(10, 200).tobytes())
    return folder


def _numbers(x):
    return np.round(np.asarray(x).reshape(len(x), -1)[:, 0] * 255).astype(int)


# --- reading


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("load", [mnist, fashion_mnist])
def test_idx_files(tmp_path, load, packed):
    _write_mnist(tmp_path, packed=packed)
    data = load(n_train=30, path=tmp_path, key=KEY)
    assert data.x.shape == (30, 784)
    assert _test(data)[0].shape == (20, 784)
    assert data.x.dtype == data.y.dtype == jnp.result_type(float)
    assert sorted(_numbers(data.x)) == list(range(30))
    assert sorted(_numbers(_test(data)[0])) == list(range(30, 50))
    np.testing.assert_array_equal(data.y.argmax(1), np.round(np.asarray(data.x)[:, -1] * 255))
    np.testing.assert_array_equal(_test(data)[1].argmax(1), np.round(np.asarray(_test(data)[0])[:, -1] * 255))
    assert data.x.max() <= 1


def test_cifar_files(tmp_path):
    _write_cifar(tmp_path)
    data = cifar10(n_train=40, path=tmp_path, flatten=False, key=KEY)
    assert data.x.shape == (40, 3, 32, 32)
    assert _test(data)[0].shape == (10, 3, 32, 32)
    assert sorted(_numbers(data.x)) == list(range(40))
    assert sorted(_numbers(_test(data)[0])) == list(range(200, 210))
    np.testing.assert_array_equal(data.x[:, 2, 31, 5], 1)
    np.testing.assert_array_equal(data.x.sum(axis=(2, 3))[:, 1], 0)
    np.testing.assert_array_equal(data.y.argmax(1), _numbers(data.x) % 10)
    assert "40 training images in" in data.source
    flat = cifar10(n_train=40, path=tmp_path, key=KEY)
    np.testing.assert_array_equal(flat.x, data.x.reshape(40, -1))


def test_tasks(tmp_path):
    _write_mnist(tmp_path)
    parity = mnist(task="parity", n_train=30, path=tmp_path, key=KEY)
    np.testing.assert_array_equal(parity.y[:, 0], 2 * (_numbers(parity.x) % 2) - 1)
    pair = mnist(task=(3, 8), n_train=6, path=tmp_path, flatten=False, key=KEY)
    assert pair.x.shape == (6, 1, 28, 28)
    np.testing.assert_array_equal(pair.y[:, 0], np.where(_numbers(pair.x) % 10 == 8, 1, -1))
    assert _test(pair)[0].shape == (4, 1, 28, 28)
    with pytest.raises(ValueError, match='task must be "classes"'):
        mnist(task="odd", n_train=6, path=tmp_path, key=KEY)


def test_pca(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (30, 28, 28), dtype=np.uint8)
    _write(tmp_path / TRAIN_IMAGES, _idx(images))
    _write(tmp_path / TRAIN_LABELS, _idx(_mnist_arrays(30)[1]))
    short = mnist(n_train=20, n_test=0, pca=4, path=tmp_path, key=KEY)
    long = mnist(n_train=20, n_test=0, path=tmp_path, key=KEY).transform(pca(4))
    assert short.test is None
    np.testing.assert_array_equal(short.x, long.x)
    with pytest.raises(ValueError, match="pca=4 needs flat inputs, got flatten=False"):
        mnist(n_train=20, n_test=0, pca=4, flatten=False, path=tmp_path, key=KEY)


# --- splitting


def test_official_split_draws_from_each_side(tmp_path):
    _write_mnist(tmp_path)
    a, b = (mnist(n_train=12, n_test=7, path=tmp_path, key=KEY) for _ in range(2))
    np.testing.assert_array_equal(a.x, b.x)
    np.testing.assert_array_equal(_test(a)[0], _test(b)[0])
    train, test = _numbers(a.x), _numbers(_test(a)[0])
    assert len(set(train)) == 12
    assert max(train) < 30
    assert len(set(test)) == 7
    assert min(test) >= 30
    other = mnist(n_train=12, n_test=7, path=tmp_path, key=jax.random.key(1))
    assert set(_numbers(other.x)) != set(train)
    # the test samples do not depend on how many training samples are drawn
    np.testing.assert_array_equal(mnist(n_train=3, n_test=7, path=tmp_path, key=KEY).x_test, _test(a)[0])


def test_random_split_pools_every_file(tmp_path):
    _write_mnist(tmp_path)
    data = mnist(n_train=35, official_split=False, path=tmp_path, key=KEY)
    assert sorted([*_numbers(data.x), *_numbers(_test(data)[0])]) == list(range(50))
    assert min(_numbers(_test(data)[0])) < 30
    few = mnist(n_train=10, n_test=10, official_split=False, path=tmp_path, key=KEY)
    assert not set(_numbers(few.x)) & set(_numbers(_test(few)[0]))
    pooled = cifar10(n_train=25, official_split=False, path=_write_cifar(tmp_path / "c"), key=KEY)
    assert sorted([*_numbers(pooled.x), *_numbers(_test(pooled)[0])]) == [*range(40), *range(200, 210)]


def test_too_many_samples(tmp_path):
    _write_mnist(tmp_path)
    with pytest.raises(ValueError, match="31 samples were requested, but there are 30 training samples of MNIST"):
        mnist(n_train=31, path=tmp_path, key=KEY)
    with pytest.raises(ValueError, match="21 samples were requested, but there are 20 test samples of MNIST"):
        mnist(n_train=1, n_test=21, path=tmp_path, key=KEY)
    with pytest.raises(ValueError, match=r"40 \+ 11 = 51 samples were requested, but there are 50 samples of MNIST"):
        mnist(n_train=40, n_test=11, official_split=False, path=tmp_path, key=KEY)


def test_under_jit_and_vmap_over_the_key(tmp_path):
    _write_mnist(tmp_path)
    for official in (True, False):

        def make(key, official=official):
            return mnist(n_train=8, n_test=3, official_split=official, path=tmp_path, key=key)

        keys = jax.random.split(KEY, 3)
        many: Any = jax.jit(jax.vmap(make))(keys)
        for i in range(3):
            np.testing.assert_allclose(many.x[i], make(keys[i]).x, rtol=1e-6)
            np.testing.assert_array_equal(many.y_test[i], make(keys[i]).y_test)


# --- finding


def test_places(tmp_path, monkeypatch):
    def source(**options):
        return mnist(n_train=1, key=KEY, **options).source

    with pytest.raises(FileNotFoundError):
        source()
    cached = _write_mnist(tmp_path / "cache" / "jaxsolve" / "mnist")
    assert str(cached) in source()
    parent = tmp_path / "parent"
    monkeypatch.setenv("JAXSOLVE_DATA", str(parent))
    assert str(cached) in source()  # nothing there yet
    _write_mnist(parent / "mnist")
    assert str(parent / "mnist") in source()
    given = _write_mnist(tmp_path / "given")
    assert str(given) in source(path=given)
    assert str(given) in source(path=str(given))
    with pytest.raises(FileNotFoundError):
        source(path=tmp_path / "nowhere")  # a folder that was asked for is not replaced by another


def test_home_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = _write_cifar(tmp_path / ".cache" / "jaxsolve" / "cifar-10-batches-bin")
    assert str(folder) in cifar10(n_train=1, key=KEY).source


def test_mnist_is_never_taken_for_fashion(tmp_path, monkeypatch):
    """Their files have the same names: the folder says which they are, or who gives it as path=."""
    folder = _write_mnist(tmp_path / "mnist")
    with pytest.raises(FileNotFoundError, match="Fashion-MNIST: no file found"):
        fashion_mnist(n_train=1, path=tmp_path, key=KEY)
    for place in (tmp_path, folder):
        monkeypatch.setenv("JAXSOLVE_DATA", str(place))
        with pytest.raises(FileNotFoundError, match="give the folder that contains fashion_mnist as path="):
            fashion_mnist(n_train=1, key=KEY)
    assert str(folder) in fashion_mnist(n_train=1, path=folder, key=KEY).source


@pytest.mark.parametrize(
    ("load", "folder", "file", "official"),
    [
        (mnist, "mnist", TRAIN_IMAGES, "http://yann.lecun.com/exdb/mnist/"),
        (fashion_mnist, "fashion_mnist", TEST_LABELS, "https://github.com/zalandoresearch/fashion-mnist"),
        (cifar10, "cifar-10-batches-bin", "data_batch_5.bin", "https://www.cs.toronto.edu/~kriz/cifar.html"),
    ],
)
def test_missing_files_tell_where_and_what_and_whence(tmp_path, monkeypatch, load, folder, file, official):
    monkeypatch.setenv("JAXSOLVE_DATA", str(tmp_path / "data"))
    with pytest.raises(FileNotFoundError) as caught:
        load(n_train=1, key=KEY)
    for part in (
        str(tmp_path / "data" / folder),
        str(tmp_path / "cache" / "jaxsolve" / folder),
        file,
        official,
        "path=",
        "JAXSOLVE_DATA",
    ):
        assert part in str(caught.value)


def test_only_one_side_is_there(tmp_path):
    folder = _write_mnist(tmp_path, n_train=0)
    with pytest.raises(FileNotFoundError, match=r"no training files. official_split=False draws .*Wanted: train-im"):
        mnist(n_train=5, path=folder, key=KEY)
    assert len(_test(mnist(n_train=5, official_split=False, path=folder, key=KEY))[0]) == 15
    other = _write_mnist(tmp_path / "other", n_test=0)
    with pytest.raises(FileNotFoundError, match=r"has no test files. n_test=0 needs none.*Wanted: t10k-images"):
        mnist(n_train=5, path=other, key=KEY)
    assert mnist(n_train=5, n_test=0, path=other, key=KEY).test is None


def test_images_without_labels(tmp_path):
    _write_mnist(tmp_path)
    (tmp_path / TRAIN_LABELS).unlink()
    for official in (True, False):
        with pytest.raises(FileNotFoundError, match="has train-images-idx3-ubyte but not train-labels-idx1-ubyte"):
            mnist(n_train=5, official_split=official, path=tmp_path, key=KEY)


# --- damage


def _damage(content, how):
    if how == "magic":
        return struct.pack(">I", 0x0D03) + content[4:]
    if how == "short":
        return content[:-1]
    if how == "long":
        return content + b"\0"
    if how == "header":
        return content[:7]
    return how


@pytest.mark.parametrize(
    ("file", "how", "message"),
    [
        (TRAIN_IMAGES, "magic", "begins with the magic number 3331; an IDX file of images begins with 2051"),
        (TRAIN_LABELS, "magic", "begins with the magic number 3331; an IDX file of labels begins with 2049"),
        (TRAIN_IMAGES, "short", "holds 23519 bytes after its header; the header's sizes 30 x 28 x 28 ask for 23520"),
        (TRAIN_LABELS, "long", "holds 31 bytes or more after its header; the header's sizes 30 ask for 30"),
        (TRAIN_IMAGES, "header", "holds 7 bytes; the header of an IDX file of 3 axes has 16"),
        (TRAIN_LABELS, b"", "holds 0 bytes; the header of an IDX file of 1 axes has 8"),
        (TRAIN_IMAGES, _idx(np.zeros((0, 28, 28), np.uint8)), "sizes 0 x 28 x 28 must be positive"),
        (TRAIN_IMAGES, _idx(np.zeros((30, 28, 27), np.uint8)), "images of 28 x 27 pixels; expected 28 x 28"),
        (TRAIN_LABELS, _idx(np.zeros(29, np.uint8)), "holds 30 images but .* holds 29 labels"),
        (TRAIN_LABELS, _idx(np.full(30, 10, np.uint8)), r"holds the label 10; expected labels 0\.\.9"),
    ],
)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_damaged_idx_files(tmp_path, file, how, message, packed):
    _write_mnist(tmp_path)
    content = _damage((tmp_path / file).read_bytes(), how)
    (tmp_path / file).unlink()
    _write(tmp_path / file, content, packed)
    with pytest.raises(ValueError, match=message) as caught:
        mnist(n_train=5, path=tmp_path, key=KEY)
    assert file in str(caught.value)


@pytest.mark.parametrize("how", ["not gzip", "cut", "flipped"])
def test_damaged_gzip(tmp_path, how):
    _write_mnist(tmp_path, packed=True)
    path = tmp_path / f"{TRAIN_IMAGES}.gz"
    content = path.read_bytes()
    bad = {
        "not gzip": b"plain text",
        "cut": content[: len(content) // 2],
        "flipped": content[:20] + bytes(255 - b for b in content[20:40]) + content[40:],
    }[how]
    path.write_bytes(bad)
    with pytest.raises(ValueError, match="expected a gzip file, but unpacking it failed") as caught:
        mnist(n_train=5, path=tmp_path, key=KEY)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_cifar_records(2).tobytes()[:-1], "holds 6145 bytes; expected a positive multiple of 3073"),
        (b"", "holds 0 bytes; expected a positive multiple of 3073"),
        (bytes([10]) + bytes(3072), r"holds the label 10; expected labels 0\.\.9"),
    ],
    ids=["cut", "empty", "label"],
)
def test_damaged_cifar_files(tmp_path, content, message):
    _write_cifar(tmp_path)
    (tmp_path / "data_batch_2.bin").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        cifar10(n_train=5, path=tmp_path, key=KEY)
    assert "data_batch_2.bin" in str(caught.value)


# --- the real images


def _needs(file):
    return pytest.mark.skipif(
        not (REAL / file).is_file(), reason=f"{REAL / file} is absent; JAXSOLVE_DATA may name the folder of the images"
    )


@_needs("mnist/t10k-images-idx3-ubyte.gz")
def test_real_mnist():
    data = mnist(n_train=8000, official_split=False, path=REAL, key=KEY)
    assert len(data.y) + len(_test(data)[1]) == 10_000
    counts = np.asarray(data.y.sum(0) + _test(data)[1].sum(0))
    np.testing.assert_array_equal(counts, [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009])
    np.testing.assert_allclose(jnp.concatenate([data.x, _test(data)[0]]).mean(), 0.1325, atol=1e-4)  # a known mean
    # a linear classifier tells images and labels belong together
    x = np.concatenate([np.asarray(data.x, np.float64), np.ones((8000, 1))], axis=1)[:, ::3]
    x_test = np.concatenate([np.asarray(_test(data)[0], np.float64), np.ones((2000, 1))], axis=1)[:, ::3]
    weights = np.linalg.solve(x.T @ x + 10 * np.eye(x.shape[1]), x.T @ np.asarray(data.y))
    assert np.mean((x_test @ weights).argmax(1) == np.asarray(_test(data)[1]).argmax(1)) > 0.75
    if not (REAL / "mnist" / f"{TRAIN_IMAGES}.gz").is_file() and not (REAL / "mnist" / TRAIN_IMAGES).is_file():
        with pytest.raises(FileNotFoundError, match="has no training files"):
            mnist(n_train=10, path=REAL, key=KEY)


@_needs("cifar-10-batches-bin/data_batch_1.bin")
def test_real_cifar(monkeypatch):
    monkeypatch.setenv("JAXSOLVE_DATA", str(REAL))
    data = cifar10(task="parity", n_train=1000, n_test=500, flatten=False, key=KEY)
    assert data.x.shape == (1000, 3, 32, 32)
    assert _test(data)[0].shape == (500, 3, 32, 32)
    # natural images: neighboring pixels are alike, colors bright
    x = np.asarray(data.x, np.float64)
    assert np.corrcoef(x[..., 1:].ravel(), x[..., :-1].ravel())[0, 1] > 0.9
    assert np.corrcoef(x[:, :, 1:].ravel(), x[:, :, :-1].ravel())[0, 1] > 0.9
    np.testing.assert_allclose(x.mean(axis=(0, 2, 3)), [0.491, 0.482, 0.447], atol=0.03)
    assert abs(data.y.mean()) < 0.15
