from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

import intarsia
from intarsia.core.block import Block, Labels
from intarsia.core.schema import Schema
from intarsia.errors import FederationError
from intarsia.inspection.overlap import holdings_of, holdings_table, overlap_counts
from intarsia.plots.overlap import (
    _NOBODY,
    _name_features,
    _name_parts,
    _paint,
    blocks_of,
    classes_of,
    holdings_figure,
    holdings_picture,
)
from intarsia.plots.sides import HEIGHT, WIDTH, feature_side, missing_fractions, sample_side
from intarsia.plots.style import distinct_colours


def block(samples, features, y=None, missing=()):
    x = np.ones((len(samples), len(features)))
    for row, column in missing:
        x[row, column] = np.nan
    return Block(np.array(samples), tuple(features), x, None if y is None else np.array(y, float))


@pytest.fixture
def parties():
    return {
        "bank": block([1, 2, 3, 4], "ab", [1, -1, 1, 1]),
        "telecom": block([3, 4, 5], "bc", [1, np.nan, -1], missing=[(0, 0), (2, 1)]),
        "retailer": block([6, 7], "d"),
    }


def painted(parties):
    holdings = holdings_of(parties)
    rows, columns = sample_side(holdings), feature_side(holdings)
    found = missing_fractions(parties)
    missing = {number: found[name] for number, name in enumerate(parties) if name in found}
    image, strip = _paint(rows, columns, np.array(distinct_colours(len(parties))), missing)
    return rows, columns, image, strip


def test_the_table_counts_what_can_be_counted_by_hand(parties):
    bank, telecom, retailer = holdings_table(parties)
    assert (bank.samples, bank.features, bank.labelled) == (4, 2, 4)
    assert (bank.shared_samples, bank.shared_features, bank.missing) == (2, 1, 0.0)
    assert (telecom.samples, telecom.features, telecom.labelled) == (3, 2, 2)
    assert (telecom.shared_samples, telecom.shared_features) == (2, 1)
    assert telecom.missing == pytest.approx(100 * 2 / 6)
    assert (retailer.client, retailer.labelled, retailer.shared_samples) == ("retailer", 0, 0)


def test_a_schema_gives_the_same_table_without_missing_values(parties):
    schema = Schema.of(parties, Labels("binary", ("0", "1")))
    for public, private in zip(holdings_table(schema), holdings_table(parties), strict=True):
        assert public.missing is None
        assert (public.samples, public.shared_features) == (
            private.samples,
            private.shared_features,
        )


def test_pairs_have_in_common_what_their_sets_have_in_common(parties):
    found = overlap_counts(parties)
    assert found.clients == tuple(parties)
    np.testing.assert_array_equal(found.samples, [[4, 2, 0], [2, 3, 0], [0, 0, 2]])
    np.testing.assert_array_equal(found.features, [[2, 1, 0], [1, 2, 0], [0, 0, 1]])
    np.testing.assert_array_equal(found.entries, [[8, 2, 0], [2, 6, 0], [0, 0, 2]])


def test_each_pixel_has_the_colour_of_an_owner_of_its_entry(parties):
    rows, columns, image, _ = painted(
        {name: block(b.samples, b.features) for name, b in parties.items()}
    )
    colours = np.array(distinct_colours(3))
    for r in range(5, HEIGHT, 37):
        for c in range(5, WIDTH, 41):
            sample, feature = rows.ids[rows.entry_at[r]], columns.ids[columns.entry_at[c]]
            owners = [
                number
                for number, party in enumerate(parties.values())
                if sample in party.samples and feature in party.features
            ]
            allowed = [colours[n] * (0.9 if len(owners) > 1 else 1.0) for n in owners] or [_NOBODY]
            joint = np.ones(3)
            assert any(np.allclose(image[r, c], one) for one in [*allowed, joint]), (
                sample,
                feature,
            )


def test_a_picture_has_the_colours_of_its_legend():
    figure = holdings_figure({"bank": block([1, 2], "ab"), "shop": block([1, 2], "cd")})
    shown = figure.axes[0].images[0].get_array()[10]
    said = [patch.get_facecolor()[:3] for patch in figure.legends[0].get_patches()]
    assert len(said) == 2
    for pixel, colour in zip((shown[10], shown[-10]), said, strict=True):
        np.testing.assert_allclose(pixel, 255 * np.array(colour), atol=1)


def test_a_client_with_all_its_values_missing_in_a_column_is_pale_there():
    alone = {"one": block([1, 2], "ab", missing=[(0, 1), (1, 1)])}
    _, columns, image, _ = painted(alone)
    present, missing = (
        image[10, np.flatnonzero(columns.ids[columns.entry_at] == f)[9]] for f in "ab"
    )
    np.testing.assert_allclose(present, distinct_colours(1)[0])
    assert (missing > 0.8).all()


def test_the_strip_shows_who_holds_the_labels(parties):
    rows, _, _, strip = painted(parties)
    colours = np.array(distinct_colours(3))
    shown = {int(s): strip[rows.entry_at == at, 3] for at, s in enumerate(rows.ids)}
    assert np.allclose(shown[1], colours[0])  # the bank alone
    assert np.allclose(shown[4], colours[0])  # the telecom's label is missing
    assert np.allclose(shown[5], colours[1])
    assert np.allclose(shown[6], _NOBODY)
    both = {tuple(np.round(pixel, 6)) for pixel in shown[3]}
    assert both == {tuple(np.round(0.9 * colours[n], 6)) for n in (0, 1)}


def test_neighbouring_groups_of_a_ring_lie_beside_each_other():
    ring = {f"r{g}": block([3 * g, 3 * g + 1, 3 * g + 2, (3 * g + 3) % 12], "a") for g in range(4)}
    rows = sample_side(holdings_of(ring))
    changes = np.abs(np.diff(rows.owners.astype(int), axis=0)).sum()
    assert changes == len(rows.owners) - 1  # one owner joins or leaves at each step


@pytest.mark.parametrize("clients", [1, 3, 16, 64])
def test_the_picture_is_a_png_of_a_fixed_size(clients, tmp_path):
    parties = {
        f"client $_{n}^": block(range(5 * n, 5 * n + 8), (f"$f_{n}", "é^$"), [1.0] * 8)
        for n in range(clients)
    }
    path = holdings_picture(parties, tmp_path / "new" / "holdings.png")
    with Image.open(path) as image:
        assert (image.format, image.size) == ("PNG", (1750, 1092))


def test_the_picture_of_a_schema_and_of_an_empty_table_can_be_drawn(parties, tmp_path):
    schema = Schema.of(parties, Labels("binary", ("0", "1")))
    assert holdings_picture(schema, tmp_path / "schema.png", title="All").is_file()
    empty = {"nothing": Block(np.empty(0, np.int64), ("a",), np.empty((0, 1)))}
    assert holdings_picture(empty, tmp_path / "empty.png").is_file()


def test_a_picture_without_the_blocks_is_theirs_where_it_knows_what_is_missing(parties, tmp_path):
    schema = Schema.of(parties, Labels("binary", ("0", "1")))
    drawn = {
        name: holdings_picture(of, tmp_path / f"{name}.png", **how).read_bytes()
        for name, of, how in (
            ("blocks", parties, {}),
            ("schema", schema, {"missing": missing_fractions(parties)}),
            ("unknown", schema, {}),
        )
    }
    assert drawn["schema"] == drawn["blocks"] != drawn["unknown"]


def test_no_client_and_mixed_ids_are_errors(tmp_path):
    with pytest.raises(FederationError, match="There is no client"):
        holdings_picture({}, tmp_path / "none.png")
    with pytest.raises(FederationError, match=r"'a' has whole numbers.*'b' has text"):
        holdings_table({"a": block([1], "x"), "b": block(["1"], "x")})


def test_of_very_many_clients_the_first_are_drawn(tmp_path, monkeypatch):
    many = {f"c{k}": block([2 * k, 2 * k + 1], [f"f{k}"], [1, -1]) for k in range(203)}
    monkeypatch.setattr("intarsia.plots.sides.MOST_CLIENTS", 3)
    few = {name: many[name] for name in ("c0", "c1", "c2")}
    drawn = [
        np.asarray(Image.open(holdings_picture(some, tmp_path / f"{len(some)}.png", title="x")))
        for some in (many, few)
    ]
    np.testing.assert_array_equal(*drawn)


def test_thin_bands_keep_their_colour_beside_thick_ones():
    # ten clients with 200 samples each, forty with three: those are a few pixels high
    parties = {
        f"c{n:02}": block(range(1000 * n, 1000 * n + (200 if n < 10 else 3)), f"{'xy'[n < 10]}")
        for n in range(50)
    }
    rows, columns, image, _ = painted(parties)
    colours = np.array(distinct_colours(len(parties)))
    for name in (0, 30, 49):
        cell = int(np.flatnonzero(rows.owners[:, name])[0])
        held = columns.owners[columns.cell_at][:, name]
        band = image[rows.cell_at == cell][:, held]
        own = np.isclose(band, colours[name]).all(axis=-1)
        assert own.mean() > 0.6


@pytest.fixture
def dealt():
    """Return two clients: u and v of the first class, v and w of both."""
    columns = {name: tuple(f"{name}{k}" for k in range(50)) for name in "uvw"}
    held = {"a": ("uv", [1, 2], [0, 0]), "b": ("vw", [1, 2, 3, 4], [0, 0, 1, 1])}
    return {
        client: Block(
            np.array(samples),
            tuple(column for name in names for column in columns[name]),
            np.ones((len(samples), 100)),
            np.array(y, float),
            {name: columns[name] for name in names},
        )
        for client, (names, samples, y) in held.items()
    }


def texts(axes):
    """Return what is written, with the pixel where it is."""
    return {(one.get_text(), *map(round, one.get_position())) for one in axes.texts}


def test_each_part_of_blocks_and_classes_says_whose_it_is(dealt):
    holdings = holdings_of(dealt)
    rows, columns = sample_side(holdings), feature_side(holdings)
    found = classes_of(dealt, ("cat", "dog"), rows.ids, rows.cell_of)
    assert [found[rows.cell_of[rows.find(np.array([one]))[0]]] for one in (1, 3)] == ["cat", "dog"]
    axes = Figure().add_axes((0, 0, 1, 1))
    _name_parts(axes, rows, columns, tuple(dealt))
    third, half = WIDTH / 3, HEIGHT / 2
    first, second = (0.5, 1.5) if rows.ids[0] == 1 else (1.5, 0.5)
    order = [str(name)[0] for name in columns.ids[[0, 50, 100]]]
    expected = {
        ("\n".join(owners), block, row)
        for row, holding in (
            (first, {"u": "a", "v": "ab", "w": "b"}),
            (second, {"v": "b", "w": "b"}),
        )
        for block, owners in holding.items()
    }
    assert texts(axes) == {
        (names, round(third * (order.index(block) + 0.5) - 0.5), round(half * row - 0.5))
        for names, block, row in expected
    }


def test_blocks_are_written_below_where_features_are_many(dealt):
    holdings = holdings_of(dealt)
    columns = feature_side(holdings)
    axes = Figure().add_axes((0, 0, 1, 1))
    _name_features(axes, columns, blocks_of(holdings))
    order = sorted(axes.texts, key=lambda one: one.get_position()[0])
    assert [one.get_text() for one in order] == [str(n)[0] for n in columns.ids[[0, 50, 100]]]
    assert axes.get_xlabel() == "feature block (150 features)"
    few = {name: Block(b.samples, b.features[:9], b.x[:, :9], b.y) for name, b in dealt.items()}
    axes = Figure().add_axes((0, 0, 1, 1))
    _name_features(axes, feature_side(holdings_of(few)), {})
    assert not axes.texts
    assert len(axes.get_xticks()) == 18


def test_classes_that_lie_in_several_parts_are_not_written(dealt):
    rows = sample_side(holdings_of(dealt))
    some = dict(dealt, b=Block(dealt["b"].samples, dealt["b"].features, dealt["b"].x, np.zeros(4)))
    assert classes_of(some, ("cat", "dog"), rows.ids, rows.cell_of) == {}
    assert classes_of({}, ("cat", "dog"), rows.ids, rows.cell_of) == {}
    assert classes_of(dealt, (), rows.ids, rows.cell_of) == {}


def test_title_and_legend_say_whether_all_rows_are_drawn_or_those_trained_on(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    x = np.random.default_rng(0).normal(size=(100, 2))
    tables = {"a": (x, np.sign(x[:, 0])), "b": (x, np.sign(x[:, 0]))}
    intarsia.inspect(tables=tables, picture=tmp_path / "all.png")
    result = intarsia.run(
        tables=tables, rounds=1, tolerance=0, yardsticks=False, out=tmp_path / "o", workers=1
    )
    trained = 200 - result.metrics.server.samples
    for figure, count, which in zip(
        drawn[:2], (200, trained), ("all rows", "training rows"), strict=True
    ):
        (title,) = [text.get_text() for text in figure.texts]
        assert title == f"Who holds what: 2 clients, {count} samples × 2 features ({which})"
        assert figure.legends[0].get_title().get_text() == f"{which} × columns"


@pytest.mark.parametrize("clients", [3, 12])
def test_a_long_name_is_cut_in_the_legend_and_its_counts_are_there(clients):
    name = "University hospital of Schleswig-Holstein, campus Lübeck, internal medicine"
    every = {f"{name} {at}": block([1, 2], "ab", [1, -1]) for at in range(clients)}
    figure = holdings_figure(every)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1
    first = legend.get_texts()[0].get_text()
    assert first.startswith("University hos")
    assert "…" in first
    assert first.endswith("2 × 2, 2 labels")
