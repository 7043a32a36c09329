from watchrelay.observe.status import BIN_MS, BINS, EventRate

START = 1_700_000_000_000


def paced(*counted: tuple[int, int]) -> EventRate:
    """Events counted at so many milliseconds after START."""
    pace = EventRate()
    for at_ms, events in counted:
        pace.count(START + at_ms, events)
    return pace


def test_nothing_counted_is_nothing_reported() -> None:
    pace = EventRate()
    assert (pace.latest(), pace.history(), pace.per_s(START)) == ((0, 0, 0), [], 0.0)


def test_events_of_ten_seconds_stand_in_one_bin() -> None:
    pace = paced((0, 3), (9_999, 4), (10_000, 5), (40_000, 1))
    assert pace.history() == [7, 5, 0, 0, 1]
    assert pace.latest() == ((START + 40_000) // BIN_MS, 0, 1)


def test_ten_minutes_are_remembered_and_no_more() -> None:
    pace = paced(*((number * BIN_MS, number + 1) for number in range(2 * BINS)))
    assert pace.history() == list(range(BINS + 1, 2 * BINS + 1))


def test_a_long_silence_leaves_nothing_of_before() -> None:
    assert paced((0, 9), (BINS * BIN_MS, 2)).history() == [2]


def test_a_clock_that_is_set_back_starts_the_rate_again() -> None:
    assert paced((60_000, 9), (0, 2)).history() == [2]


def test_the_pace_is_that_of_the_last_ten_seconds() -> None:
    pace = paced((0, 100), (10_000, 50))
    assert pace.per_s(START + 10_000) == 15.0
    assert pace.per_s(START + 15_000) == 10.0
    assert pace.per_s(START + 20_000) == 5.0
    assert pace.per_s(START + 30_000) == 0.0
