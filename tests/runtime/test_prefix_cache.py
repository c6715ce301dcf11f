"""Which states are kept, found and dropped: against plain models of the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tripower.runtime.kernel import InvalidRequest
from tripower.runtime.prefix_cache import PageLedger, PrefixCache, PrefixSettings, check_key, namespace_of
from tripower.runtime.prefix_cache.block_tree import BlockTree, common_length

B = 4
SECRET = b"s" * 32
TOKENS = st.lists(st.integers(0, 1), max_size=11).map(tuple)


def new_cache(pages_max: int = 100, *, kept: int = 0, entries: int = 8, ttl: float = 300.0) -> tuple[PrefixCache, PageLedger]:
    """`kept`: pages for entries; 0 for half of all."""
    ledger = PageLedger(B)
    settings_ = PrefixSettings(bytes_max=10 * kept, entries_max=entries, ttl_seconds=ttl)
    return PrefixCache(settings_, ledger, pages_max=pages_max, page_bytes=10), ledger


def keep(cache: PrefixCache, sequence: int, tokens: tuple[int, ...], *, identity: str = "a", now: float = 0.0) -> int:
    return cache.keep(sequence, identity, identity, tokens, now)


# Names and keys. SCH-P1, P3.


@pytest.mark.parametrize("key", ["", " k", "k ", "a\nb", "a\x7f", "x" * 257, "é" * 129, "\ud800"])
def test_a_key_that_breaks_the_rules_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_key(key)
    assert caught.value.code == "invalid_prompt_cache_key" and caught.value.param == "prompt_cache_key"


@pytest.mark.parametrize("key", ["k", "a b", "x" * 256, "é" * 128])
def test_256_bytes_of_printable_text_are_a_key(key: str) -> None:
    check_key(key)


def test_everything_that_must_be_equal_changes_the_name_and_the_key_is_not_in_it() -> None:
    same = {"identity": "a", "endpoint": "chat", "model": "m", "key": "my-key", "secret": SECRET}
    name = namespace_of(**same)  # type: ignore[arg-type]
    assert name == namespace_of(**same) and name.startswith("tpc1:") and "my-key" not in name  # type: ignore[arg-type]
    for changed in (
        {"identity": "b"},
        {"identity": ""},
        {"endpoint": "completion"},
        {"model": "n"},
        {"key": None},
        {"secret": b"t"},
    ):
        assert namespace_of(**same | changed) != name
    moved = same | {"identity": "ac", "endpoint": "hat"}
    assert namespace_of(**moved) != namespace_of(**same | {"identity": "a"})  # type: ignore[arg-type]


# The tree.


@settings(deadline=None, max_examples=200)
@given(held=st.lists(TOKENS, max_size=8), asked=TOKENS, gone=st.sets(st.integers(0, 7)))
def test_the_tree_finds_the_longest_common_beginning(
    held: list[tuple[int, ...]], asked: tuple[int, ...], gone: set[int]
) -> None:
    tree, alive = BlockTree(B), dict[int, tuple[int, ...]]()
    for holder, tokens in enumerate(held):
        covered = tree.insert(holder, tokens)
        assert set(covered) == {other for other, each in alive.items() if each == tokens[: len(each)]}
        alive[holder] = tokens
    for holder in gone & alive.keys():
        tree.remove(holder, alive.pop(holder))
    holder, length = tree.longest(asked)
    assert length == max((common_length(tokens, asked) for tokens in alive.values()), default=0)
    if length:
        assert common_length(alive[holder], asked) == length
    for each, tokens in alive.items():
        tree.remove(each, tokens)
    assert tree.longest(asked) == (-1, 0)


# Found, missed, dropped.


def test_a_hit_leaves_the_last_token_to_evaluate_and_a_miss_has_a_reason() -> None:
    cache, _ = new_cache(ttl=5)
    prompt = (1, 2, 3, 4, 5)
    assert cache.find("a", prompt, 0).reason == "cold"
    assert keep(cache, 1, prompt) == 5
    assert (cache.find("a", prompt, 0).length, cache.find("a", (*prompt, 6), 0).length) == (4, 5)
    assert cache.find("a", (9, 9), 0).reason == "no_common_prefix"
    assert cache.find("b", prompt, 0).reason == "cold"
    assert cache.find("a", (1, 2, 9), 0).length == 2
    assert cache.find("a", (1,), 0).length == 0, "one row has to be evaluated"
    assert cache.expires_at == 5 and not cache.expire(4.9) and cache.expire(5.0)
    assert cache.find("a", prompt, 5).reason == "expired" and cache.expires_at is None


@given(now=st.floats(0, 1e6), ttl=st.floats(0.1, 3600))
def test_at_the_time_that_is_told_something_is_dropped(now: float, ttl: float) -> None:
    cache, _ = new_cache(ttl=ttl)
    keep(cache, 1, (1, 2, 3), now=now)
    due = cache.expires_at
    assert due is not None and cache.expire(due), "else whoever waits for it would wait for ever, or never"


def test_a_longer_state_replaces_its_beginning_and_a_shorter_one_is_not_kept() -> None:
    cache, ledger = new_cache()
    assert keep(cache, 1, (1, 2, 3)) == 3 and keep(cache, 2, (1, 2, 3, 4, 5)) == 5
    assert cache.sequences() == [2] and cache.statistics().replaced == 1
    assert keep(cache, 3, (1, 2)) == 0 and keep(cache, 4, (1, 2, 3, 4, 5)) == 0
    assert cache.sequences() == [2] and ledger.used == 2
    cache.forget()
    assert cache.sequences() == [] and ledger.used == 0
    assert cache.find("a", (1, 2), 0).reason == "rollback_unprovable"


def test_the_least_recently_used_goes_where_there_are_too_many() -> None:
    cache, _ = new_cache(entries=2)
    for sequence, now in ((1, 0.0), (2, 1.0)):
        keep(cache, sequence, (sequence,) * 3, now=now)
    cache.find("a", (1, 1, 9), 2.0)
    keep(cache, 3, (3, 3), now=3.0)
    assert cache.sequences() == [1, 3] and cache.statistics().evicted_capacity == 1


def test_what_is_longer_than_all_that_may_be_kept_is_kept_in_part() -> None:
    cache, ledger = new_cache(kept=2)
    assert keep(cache, 1, tuple(range(30))) == 2 * B and ledger.used == 2


def test_who_holds_most_makes_room_so_nobody_loses_what_is_below_its_share() -> None:
    cache, _ = new_cache(kept=6)
    keep(cache, 1, (1,) * 8, identity="small")
    for sequence in range(2, 20):
        keep(cache, sequence, (sequence,) * 8, identity="greedy")
    assert 1 in cache.sequences() and cache.pages_of("small") == 2 and cache.pages_of("greedy") == 4


# BB-047
def test_room_is_made_before_anybody_who_runs_lacks_a_page() -> None:
    cache, ledger = new_cache(pages_max=6, kept=4)
    keep(cache, 1, (1,) * 8)
    keep(cache, 2, (2,) * 8, now=1.0)
    ledger.resize(9, 0)
    cache.make_room(ledger.more(9, 16))
    assert cache.sequences() == [2] and ledger.used + ledger.more(9, 16) <= 6
    cache.make_room(ledger.more(9, 24))
    assert cache.sequences() == []


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_ledger_counts_as_the_page_table_of_the_engine(data: st.DataObject) -> None:
    from tripower.backends.picolm.page_table import PageTable

    table, ledger = PageTable(pages_max=500, page_positions=B), PageLedger(B)
    alive: list[int] = []
    for sequence in range(data.draw(st.integers(1, 12))):
        forks: bool = data.draw(st.booleans())
        source = data.draw(st.sampled_from(alive)) if forks and alive else None
        if source is None:
            table.open(sequence)
            ledger.resize(sequence, 0)
        else:
            length = data.draw(st.integers(0, table.length(source)))
            table.fork(source, sequence, length)
            ledger.fork(source, sequence, length)
        alive.append(sequence)
        grown = data.draw(st.sampled_from(alive))
        rows = data.draw(st.integers(0, 9))
        free, more = table.pages_free, ledger.more(grown, table.length(grown) + rows)
        if rows:
            table.reserve(grown, rows)
            assert free - table.pages_free == more
            table.commit(grown, rows)
            ledger.resize(grown, table.length(grown))
        if data.draw(st.booleans()):
            closed = alive.pop(data.draw(st.integers(0, len(alive) - 1)))
            table.close(closed)
            ledger.close(closed)
        assert ledger.used == 500 - table.pages_free


@settings(deadline=None, max_examples=60)
@given(
    kept=st.lists(st.tuples(st.sampled_from("ab"), TOKENS), max_size=20),
    asked=st.lists(st.tuples(st.sampled_from("ab"), TOKENS), max_size=5),
)
def test_nothing_of_another_tenant_is_ever_found_and_the_books_balance(
    kept: list[tuple[str, tuple[int, ...]]], asked: list[tuple[str, tuple[int, ...]]]
) -> None:
    cache, ledger = new_cache(kept=5, entries=4, ttl=6)
    owners: dict[int, tuple[str, tuple[int, ...]]] = {}
    for sequence, (identity, tokens) in enumerate(kept):
        length = keep(cache, sequence, tokens, identity=identity, now=sequence)
        if not length:
            ledger.close(sequence)
        owners[sequence] = (identity, tokens[:length])
        cache.expire(sequence)
        held = cache.sequences()
        assert ledger.used == sum(cache.pages_of(each) for each in "ab") <= 5 and len(held) <= 4
        assert cache.statistics().bytes == 10 * ledger.used
    for identity, tokens in asked:
        match = cache.find(identity, tokens, len(kept))
        if match.length:
            owner, held_tokens = owners[match.sequence]
            assert owner == identity and held_tokens[: match.length] == tokens[: match.length] and match.length < len(tokens)
