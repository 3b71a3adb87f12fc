from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from intarsia.datasets import images as decoded_images
from intarsia.datasets.registry import encoded, load
from intarsia.errors import ExperimentError, TableError
from intarsia.partition.registry import partition


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("INTARSIA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def picture(seed, side=8, mode="RGB"):
    shape = (side, side, 3) if mode == "RGB" else (side, side)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def encode(image, kind="PNG"):
    stream = io.BytesIO()
    image.save(stream, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return stream.getvalue()


# CIFAR-10


def cifar(folder, images, labels, name="cifar10", column="label"):
    home = folder / name
    home.mkdir(exist_ok=True)
    for part in ("train", "test"):
        table = {"image": images, column: pa.array(labels, pa.uint8())}
        pyarrow.parquet.write_table(pa.table(table), home / f"{part}.parquet")
    return folder


def test_webp_images_become_rows_of_pixels_colour_by_colour(tmp_path):
    images = [picture(seed, 32) for seed in range(3)]
    folder = cifar(tmp_path, [encode(image, "WEBP") for image in images], [6, 0, 9])
    found = load("cifar10", folder=folder, blocks="quadrants-colours")
    assert (found.image, found.shape) == ((3, 32, 32), (6, 3072))
    assert found.y[:3].tolist() == ["frog", "airplane", "truck"]
    assert found.test.tolist() == [False] * 3 + [True] * 3
    for row, image in zip(found.x, images, strict=False):
        np.testing.assert_array_equal(row.reshape(3, 32, 32), np.asarray(image).transpose(2, 0, 1))
    assert len(found.groups) == 12
    place = [found.features.index(f) for f in found.groups["bottom-right blue"]]
    truth = np.asarray(images[0])[16:, 16:, 2]
    np.testing.assert_array_equal(found.x[0, place].reshape(16, 16), truth)


@pytest.mark.parametrize(
    ("name", "column", "kind"),
    [("cifar100", "fine_label", "WEBP"), ("tiny_imagenet32", "label", "JPEG")],
)
def test_classes_without_names_are_numbers(tmp_path, name, column, kind):
    images = [encode(picture(seed, 32), kind) for seed in range(3)]
    folder = cifar(tmp_path, images, [99, 0, 7], name, column)
    found = load(name, folder=folder)
    assert found.y.tolist() == 2 * [99, 0, 7]
    assert found.test.tolist() == [False] * 3 + [True] * 3
    for row, image in zip(found.x, images, strict=False):
        truth = np.asarray(Image.open(io.BytesIO(image))).transpose(2, 0, 1)
        np.testing.assert_array_equal(row.reshape(3, 32, 32), truth)
    assert load(name, folder=folder, side=16).image == (3, 16, 16)
    assert encoded(found)[1].classes == ("0", "7", "99")


def test_images_are_decoded_once(tmp_path, cache, monkeypatch):
    folder = cifar(tmp_path, [encode(picture(1, 32))], [1])
    first = load("cifar10", folder=folder).x
    assert [oct(path.stat().st_mode & 0o777) for path in (cache, *cache.iterdir())] == [
        "0o700",
        "0o600",
    ]
    monkeypatch.setattr("intarsia.datasets.images.decode_images", None)  # it would fail
    np.testing.assert_array_equal(load("cifar10", folder=folder).x, first)
    monkeypatch.undo()
    monkeypatch.setenv("INTARSIA_CACHE", str(cache))
    cifar(tmp_path, [encode(picture(2, 32))], [1])  # other images under the same name
    assert (load("cifar10", folder=folder).x != first).any()
    next(cache.iterdir()).write_bytes(b"broken")
    assert (load("cifar10", folder=folder).x != first).any()


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("INTARSIA_CACHE", str(tmp_path / "file" / "below"))
    made = decoded_images.kept([b"key"], lambda: np.ones((1, 2), np.uint8))
    assert made.tolist() == [[1, 1]]


def test_what_is_no_image_is_named(tmp_path):
    folder = cifar(tmp_path, [encode(picture(1, 32)), b"text"], [1, 2])
    with pytest.raises(TableError, match=r"image 1 of .*train\.parquet is no image"):
        load("cifar10", folder=folder)
    folder = cifar(tmp_path, [encode(picture(1, 32)), encode(picture(1, 16))], [1, 2])
    with pytest.raises(TableError, match=r"has 16 × 16 pixels and image 0 of .* has 32 × 32"):
        load("cifar10", folder=folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "classes", "sizes"),
    [
        ("cifar10", 10, (5000, 1000)),
        ("cifar100", 100, (500, 100)),
        ("tiny_imagenet32", 200, (500, 50)),
    ],
)
def test_sets_of_images_have_their_published_sizes_and_class_counts(
    name, classes, sizes, data_folder, monkeypatch
):
    monkeypatch.delenv("INTARSIA_CACHE")  # the user's own: decoding takes 15 seconds of a core
    for part, each in zip(load(name, folder=data_folder).split(), sizes, strict=True):
        assert np.unique(part.y, return_counts=True)[1].tolist() == [each] * classes
        assert part.x.shape == (classes * each, 3072)
        assert 0.4 < part.x[:1000].mean() * part.scale < 0.55


# EuroSAT


@pytest.mark.parametrize("inner", ["", "2750"])
def test_eurosat_is_read_from_folders_of_classes(tmp_path, inner):
    for kind in ("River", "AnnualCrop"):
        (tmp_path / inner / kind).mkdir(parents=True)
        for number in (1, 2, 10):
            image = picture(number, 64)
            image.save(tmp_path / inner / kind / f"{kind}_{number}.jpg", quality=95)
    found = load("eurosat", path=str(tmp_path), side=32, blocks="quadrants")
    assert found.shape == (6, 3 * 32 * 32)
    assert found.y.tolist() == ["AnnualCrop"] * 3 + ["River"] * 3
    assert set(found.samples[:3]) == {"AnnualCrop_1", "AnnualCrop_2", "AnnualCrop_10"}
    assert found.shapes["top-left"] == (3, 16, 16)
    assert found.test is None
    with Image.open(tmp_path / inner / "AnnualCrop" / "AnnualCrop_1.jpg") as image:
        truth = np.asarray(image).transpose(2, 0, 1)
    whole = load("eurosat", path=str(tmp_path))
    row = whole.samples.tolist().index("AnnualCrop_1")
    np.testing.assert_array_equal(whole.x[row].reshape(3, 64, 64), truth)


def test_eurosat_s_images_need_not_be_square(tmp_path):
    (tmp_path / "River").mkdir()
    rows = np.arange(16 * 20 * 3, dtype=np.uint8).reshape(16, 20, 3)
    Image.fromarray(rows).save(tmp_path / "River" / "River_1.jpg", quality=95)
    found = load("eurosat", path=str(tmp_path), blocks="quadrants")
    assert found.image == (3, 16, 20)
    assert found.shapes["top-left"] == (3, 8, 10)
    assert found.shape == (1, 3 * 16 * 20)


# ModelNet40


def rendered(home, objects, views=12, ending=".obj.shaded_v{:03d}.png"):
    """Views as the archive modelnet40_images_new_12x names them."""
    for kind, part, name in objects:
        folder = home / kind / part
        folder.mkdir(parents=True, exist_ok=True)
        for view in range(1, views + 1):
            image = Image.new("L", (224, 224), 10 * view)
            image.convert("RGB").save(folder / f"{name}{ending.format(view)}")


OBJECTS = [
    ("airplane", "train", "airplane_0001"),
    ("airplane", "test", "airplane_0627"),
    ("tv_stand", "train", "tv_stand_0001"),
]


@pytest.mark.parametrize("ending", [".obj.shaded_v{:03d}.png", "_{:03d}.jpg"])
def test_the_views_of_modelnet40_are_blocks(tmp_path, ending):
    rendered(tmp_path, OBJECTS, ending=ending)
    found = load("modelnet40", path=str(tmp_path), side=4)
    assert found.shape == (3, 12 * 16)
    assert list(found.groups) == [f"view{number:02d}" for number in range(1, 13)]
    assert set(found.shapes.values()) == {(1, 4, 4)}
    assert found.samples.tolist() == ["airplane_0627", "airplane_0001", "tv_stand_0001"]
    assert found.y.tolist() == ["airplane", "airplane", "tv_stand"]
    assert found.test.tolist() == [True, False, False]
    truth = np.repeat(10 * np.arange(1, 13), 16)
    assert np.abs(found.x.astype(int) - truth).max() <= 1
    four = load("modelnet40", path=str(tmp_path), side=4, views=4)
    assert list(four.groups) == ["view01", "view04", "view07", "view10"]
    np.testing.assert_array_equal(four.x, found.x.reshape(3, 12, 16)[:, ::3].reshape(3, -1))


def test_the_pattern_of_the_papers_fits_twelve_views_of_forty_classes(tmp_path):
    kinds = [f"kind{number:02d}" for number in range(40)]
    rendered(tmp_path, [(kind, "train", f"{kind}_0001") for kind in kinds], ending="_{:03d}.jpg")
    dataset = encoded(load("modelnet40", path=str(tmp_path), side=1))[0]
    found = partition("blocks", dataset, pattern="workshop-8")
    assert [block.shape for block in found.values()] == [(15, 6)] * 8
    assert set(found["client6"].groups) == {f"view{number:02d}" for number in range(1, 12, 2)}


def test_missing_views_and_wrong_folders_are_named(tmp_path):
    with pytest.raises(ExperimentError, match=r"holds no <class>/<train\|test>"):
        load("modelnet40", path=str(tmp_path))
    with pytest.raises(ExperimentError, match=r"holds no <class>/<class>_<number>\.jpg"):
        load("eurosat", path=str(tmp_path))
    rendered(tmp_path, OBJECTS)
    for options, sentence in (({"views": 5}, "divisor of 12"), ({"side": 0}, "side = 0")):
        with pytest.raises(ExperimentError, match=sentence):
            load("modelnet40", path=str(tmp_path), **options)
    (tmp_path / "tv_stand" / "train" / "tv_stand_0001.obj.shaded_v007.png").unlink()
    with pytest.raises(ExperimentError, match=r"'tv_stand_0001' in .* has 11 views and others"):
        load("modelnet40", path=str(tmp_path))
    # as many views as others, but not the same ones
    odd = tmp_path / "tv_stand" / "train" / "tv_stand_0001.obj.shaded_v013.png"
    Image.new("L", (224, 224)).save(odd)
    with pytest.raises(ExperimentError, match=r"'0(07|13)' is missing"):
        load("modelnet40", path=str(tmp_path))
    odd.unlink()
    Image.new("L", (224, 224)).save(odd.with_name("tv_stand_0001.obj.shaded_v006.jpg"))
    with pytest.raises(ExperimentError, match="are one view of one object"):
        load("modelnet40", path=str(tmp_path))
