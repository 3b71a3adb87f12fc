"""Draw who holds what inside a page: samples down, features across, a colour for each client."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby

from intarsia.core.block import ClientId
from intarsia.inspection.holdings import Holdings, Part
from intarsia.reports.drawing import WIDTH, colour, drawing, element, label, text_of

_HIGH, _STRIP, _LEAST = 300.0, 14.0, 3.0  # pixels
_MOST = 1500  # areas that are drawn
_LEFT, _TOP = 18.0, 24.0


def holdings_drawing(held: Holdings) -> str:
    """Return the drawing; "" where the areas with one set of holders are too many to be seen."""
    samples, features = _joined(held.samples), _joined(held.features)
    if len(samples) * len(features) > _MOST:
        pairs = sum(bool({*a.holders} & {*b.holders}) for a in samples for b in features)
        if pairs > _MOST:
            return ""
    number = {name: at for at, name in enumerate(held.clients)}
    wide = WIDTH - _LEFT - _STRIP - 14
    downs, acrosses = _ends(samples, _HIGH), _ends(features, wide)
    parts: list[str] = []
    stripes: dict[tuple[ClientId, ...], str] = {}
    largest: dict[ClientId, tuple[float, float, float, float]] = {}
    for row, (top, low) in zip(samples, downs, strict=True):
        for column, (left, right) in zip(features, acrosses, strict=True):
            both = tuple(name for name in row.holders if name in column.holders)
            fill = _fill(both, number, stripes)
            said = (
                f"{', '.join(both) or 'nobody'}: {row.entries:,} rows × {column.entries:,} columns"
            )
            area = (right - left) * (low - top)
            for name in both:
                score = area / len(both) ** 2
                if score > largest.get(name, (0.0,))[0]:
                    largest[name] = (score, (left + right) / 2, (top + low) / 2, right - left)
            if both:
                parts.append(
                    element("rect", f"<title>{text_of(said)}</title>", x=_LEFT + left,
                            y=_TOP + top, width=right - left, height=low - top, fill=fill,
                            shape_rendering="crispEdges")
                )  # fmt: skip
    for row, (top, low) in zip(held.samples, _ends(held.samples, _HIGH), strict=True):
        if row.labels:
            said = f"labels of {row.entries:,} rows: {', '.join(row.labels)}"
            parts.append(
                element("rect", f"<title>{text_of(said)}</title>", x=_LEFT + wide + 6,
                        y=_TOP + top, width=_STRIP, height=low - top,
                        fill=_fill(row.labels, number, stripes),
                        shape_rendering="crispEdges")
            )  # fmt: skip
    if len(largest) <= 12:
        taken: list[tuple[float, float]] = []
        for name, (_, x, y, room) in largest.items():
            while any(abs(x - a) < 8 * len(name) and abs(y - b) < 18 for a, b in taken):
                y += 18
            taken.append((x, y))
            if room > 7 * len(name) and y < _HIGH - 4:
                ink = {"fill": "#fff", "stroke": "#222", "stroke_width": 3, "paint_order": "stroke"}
                parts.append(label(_LEFT + x, _TOP + y + 4, name, "middle", **ink))
    rows, columns = (sum(one.entries for one in some) for some in (samples, features))
    parts.append(label(_LEFT, 15, f"{columns:,} columns →", opacity=0.75))
    turned = f"rotate(-90 12 {_TOP + _HIGH:g})"
    parts.append(label(12, _TOP + _HIGH, f"{rows:,} rows →", transform=turned, opacity=0.75))
    parts.append(label(WIDTH, 15, "labels", "end", opacity=0.75))
    back = element("rect", x=_LEFT, y=_TOP, width=wide, height=_HIGH, fill="currentColor",
                   fill_opacity=0.07)  # fmt: skip
    title = f"who holds which of {rows:,} rows and {columns:,} columns, by colour"
    defined = element("defs", "".join(_stripes(one, id_, number) for one, id_ in stripes.items()))
    return drawing(_TOP + _HIGH + 4, title, [defined, back, *parts])


def _joined(parts: Iterable[Part]) -> list[Part]:
    """Return parts with neighbours of the same holders as one."""
    return [
        Part(holders, sum(one.entries for one in some))
        for holders, some in groupby(parts, key=lambda one: one.holders)
    ]


def _ends(parts: Sequence[Part], pixels: float) -> list[tuple[float, float]]:
    """Return from where to where each part is drawn; a thin one is a little wider than to scale."""
    total = sum(one.entries for one in parts) or 1
    share = [one.entries / total * pixels for one in parts]
    if _LEAST * len(parts) * 2 < pixels:
        share = [max(one, _LEAST) for one in share]
    scale = pixels / (sum(share) or 1)
    stops = list(accumulate(one * scale for one in share))
    return list(zip([0.0, *stops], stops, strict=False))


def _fill(
    names: tuple[ClientId, ...],
    number: dict[ClientId, int],
    stripes: dict[tuple[ClientId, ...], str],
) -> str:
    """Return the colour of one holder, or the stripes of several, which are noted."""
    if len(names) < 2:
        return colour(number[names[0]], len(number)) if names else "none"
    shown = names[:8]
    mark = zlib.crc32("\0".join(f"{number[one]} {one}" for one in shown).encode())
    return f"url(#{stripes.setdefault(shown, f'stripes-{mark:08x}')})"


def _stripes(names: tuple[ClientId, ...], id_: str, number: dict[ClientId, int]) -> str:
    inside = "".join(
        element("rect", x=7 * at, y=0, width=7, height=7, fill=colour(number[name], len(number)))
        for at, name in enumerate(names)
    )
    size = {"width": 7 * len(names), "height": 7}
    return element(
        "pattern",
        inside,
        id=id_,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
        **size,
    )
