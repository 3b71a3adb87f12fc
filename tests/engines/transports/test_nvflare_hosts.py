"""Sites and a server with addresses of their own, over lines that are slow and lose packets."""

from __future__ import annotations

import pytest

import four_sites
import lossy_network

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install intarsia[nvflare]")
from federation_of_four import Federation, Reference

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("seconds", "rounds"), [(0.02, 10), (0.2, 2)])
def test_hosts_on_slow_lines_that_lose_packets_come_to_the_same_bits(tmp_path, seconds, rounds):
    reason = lossy_network.lacking()
    if reason:
        pytest.skip(reason)
    host = "federation.test"
    hosts = ("server", *four_sites.NAMES)
    with lossy_network.Network(hosts, host, seconds=seconds, loss=0.05) as network:
        four = Federation(tmp_path, server=host, place=network.place)
        four.start_all()
        try:
            described = four.describe("hyfdca")
            tree = four_sites.tree("hyfdca", described, four.tables, name="hosts", rounds=rounds)
            reference = Reference(tree, four.tables)
            four.submit(tree)
            four.finished("hosts", 900)
        finally:
            four.stop_all()
        counts = network.close()
    reference.same(four, "hosts")
    assert counts["lost"] > 20
    assert 0.03 < counts["lost"] / (counts["lost"] + counts["carried"]) < 0.07
