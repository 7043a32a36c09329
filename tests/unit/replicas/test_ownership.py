"""Why a relay stopped writing a stream."""

from watchrelay.replicas.ownership import ownership_lost, retirement_holder


def test_a_relay_says_who_took_its_stream() -> None:
    assert (
        ownership_lost("b-2", "pods", "a-1")
        == "stream pods: relay b-2 claimed it: two relays have it in their configs"
    )
    assert (
        ownership_lost("a-1", "pods", "a-1")
        == ownership_lost(None, "pods", "a-1")
        == "stream pods: a newer relay claimed it"
    )
    assert ownership_lost(retirement_holder(), "pods", "a-1").startswith(
        f"stream pods was retired while this relay wrote it, by `{retirement_holder()}`"
    )
