"""A report says what it was measured on."""

from __future__ import annotations

from tripower.bench.host import describe_host


def test_the_host_is_described_with_versions_of_what_is_installed() -> None:
    host = describe_host("msgspec", "a-distribution-that-does-not-exist")
    assert host["cores"] >= 1
    assert 0 <= host["busy_before"] <= 1
    assert (host["provisional"] is None) == (host["busy_before"] <= 0.1)
    assert {"python", "trio", "hypercorn", "msgspec"} <= set(host["versions"])
    assert "a-distribution-that-does-not-exist" not in host["versions"]
