"""Which clients form a group at each level: as they were dealt, and as an algorithm found them."""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.errors import several
from intarsia.partition.client_clusters import Structure, Structures
from intarsia.plots.client_clusters import level_colours
from intarsia.reports.drawing import WIDTH, drawing, element, label, short, text_of
from intarsia.results.history import Course

_ROW, _LEFT, _MOST = 24.0, 172.0, 400  # pixels, and clients that are drawn


@dataclass(frozen=True)
class Level:
    """One level that was found."""

    name: str
    groups: int
    clients: int  # with a part in it
    accuracy: float | None  # when the level was evaluated last; None: it never was


def levels_of(structures: Structures, course: Course | None) -> tuple[Level, ...]:
    """Return the levels that an algorithm found; () where it looks for none."""
    learned = structures.learned
    if learned is None:
        return ()
    reached = {} if course is None else course.reached
    return tuple(
        Level(
            learned.said(name),
            len({*groups} - {None}),
            sum(one is not None for one in groups),
            reached.get(name),
        )
        for name, groups in learned.levels.items()
    )


def groups_drawing(structures: Structures) -> str:
    """Return the drawing of all levels; "" where there are none, or too many clients to be seen."""
    learned = structures.learned
    if learned is None or not learned.levels or len(learned.clients) > _MOST:
        return ""
    panels = [("as dealt", structures.truth)] if structures.truth is not None else []
    panels.append(("as found", learned.among((structures.truth or learned).clients)))
    parts, top = [], 8.0
    for heading, one in panels:
        parts.append(label(0, top + 12, heading, font_weight=600))
        top += 20
        colours = level_colours(one, structures if heading == "as found" else None)
        for name, groups in one.levels.items():
            parts += _level(one, name, groups, colours[name], top)
            top += _ROW + 3
        top += 10
    if len(learned.clients) <= 40:
        wide = _width(len(learned.clients))
        for at, client in enumerate(panels[-1][1].clients):
            x, y = _LEFT + (at + 0.5) * wide, top
            turned = f"rotate(60 {x:g} {y:g})"
            parts.append(label(x, y, short(client, 16), transform=turned, font_size=10))
        top += 6 + 6 * min(16, max(map(len, learned.clients)))
    said = "groups of clients, level by level: cells of one colour in a row are one group"
    return drawing(top + 6, said, parts)


def _width(clients: int) -> float:
    return min(28.0, (WIDTH - _LEFT - 20) / clients)


def _level(
    one: Structure,
    name: str,
    groups: tuple[int | None, ...],
    colours: tuple[str | None, ...],
    top: float,
) -> list[str]:
    """Return a row: a cell for each client, and the letter of its group where there is room."""
    wide = _width(len(groups))
    order = {group: at for at, group in enumerate(dict.fromkeys(groups)) if group is not None}
    parts = [label(_LEFT - 8, top + 16, short(one.said(name), 26), "end")]
    number = {group: at + 1 for at, group in enumerate(order)}
    for at, (client, group, fill) in enumerate(zip(one.clients, groups, colours, strict=True)):
        x = _LEFT + at * wide
        among = several(groups.count(group), "client")
        said = f"{client}: {one.said(name)}, " + (
            "no part" if group is None else f"group {number[group]}, {among}"
        )
        ink = {"fill": fill} if fill else {"fill": "currentColor", "fill_opacity": 0.06}
        parts.append(
            element("rect", element("title", text_of(said)), x=x, y=top, width=max(wide - 1, 0.5),
                    height=_ROW, **ink)
        )  # fmt: skip
        if group is not None and wide >= 16:
            parts.append(
                label(x + (wide - 1) / 2, top + 16, number[group], "middle", fill="#fff",
                      stroke="#222", stroke_width=2.5, paint_order="stroke", font_size=11,
                      pointer_events="none")
            )  # fmt: skip
    return parts
