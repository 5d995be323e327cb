from hypothesis import given
from hypothesis import strategies as st

from voicechat.media.rate import EXPECTED_LOSS, HIGHEST, LOWEST, MOST_EXPECTED, RateControl
from voicechat.media.rtp import ReceptionReport


def report(share: float) -> ReceptionReport:
    return ReceptionReport(1, min(255, round(share * 256)), 1, 0, None)


def after(control: RateControl, share: float, times: int) -> RateControl:
    for _ in range(times):
        control.take(report(share))
    return control


def test_a_clean_network_takes_more():
    assert after(RateControl(32_000), 0.0, 40).bitrate == HIGHEST
    assert after(RateControl(32_000, 24_000), 0.0, 40).bitrate == 24_000, "the client wants no more"


def test_heavy_loss_takes_less_and_spends_more_on_repair():
    control = after(RateControl(32_000), 0.2, 40)
    assert control.bitrate == LOWEST
    assert control.expected_loss == 20


def test_some_loss_only_spends_more_on_repair():
    control = after(RateControl(32_000), 0.05, 10)
    assert (control.bitrate, control.expected_loss) == (32_000, 5)
    assert after(control, 0.09, 1).expected_loss == 9


def test_loss_is_forgotten_slowly():
    control = after(RateControl(32_000), 0.25, 1)
    assert after(control, 0.0, 1).expected_loss > 15
    assert after(control, 0.0, 20).expected_loss == EXPECTED_LOSS


def test_nothing_changes_when_nothing_changes():
    control = after(RateControl(32_000), 0.05, 10)
    assert not control.take(report(0.05))


@given(st.lists(st.integers(0, 255), max_size=60), st.integers(0, 200_000))
def test_bounds(losses, highest):
    control = RateControl(32_000, highest)
    for lost in losses:
        control.take(ReceptionReport(1, lost, 1, 0, 0.1))
        assert LOWEST <= control.bitrate <= HIGHEST
        assert EXPECTED_LOSS <= control.expected_loss <= MOST_EXPECTED
