from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.reliability import Backpressure, PressureState, check_pressure, pressure_signal


@given(size=st.integers(1, 50), warning_at=st.floats(0, 1), publishes=st.integers(0, 120))
def test_a_mailbox_never_overshoots_and_warns_from_its_level_on(size: int, warning_at: float, publishes: int) -> None:
    config, depth = Backpressure(max_mailbox_size=size, pressure_warning_at=warning_at), 0
    for _ in range(publishes):
        pressure = check_pressure(depth, config)
        assert (pressure.text is not None) == (depth >= size)
        assert 0 <= pressure.level <= 1
        if pressure.state is PressureState.OK:
            assert depth / size < warning_at
        depth += pressure.text is None
    assert depth <= size


def test_a_full_mailbox_refuses_with_its_text_and_a_critical_signal() -> None:
    pressure = check_pressure(1000, Backpressure())
    assert pressure.text == "backpressure: mailbox full (1000/1000)"
    signal = pressure_signal(pressure, "agents.b", 1_700_000_000_000_000_000)
    assert signal is not None
    assert (signal.type, signal.state, signal.endpoint_subject) == ("backpressure", "critical", "agents.b")
    assert signal.data == {"pressure": 1.0, "currentSize": 1000, "maxMailboxSize": 1000}


def test_at_the_warning_level_a_signal_goes_out_and_the_message_in() -> None:
    pressure = check_pressure(800, Backpressure())
    assert pressure.text is None
    signal = pressure_signal(pressure, "agents.b", 0)
    assert signal is not None
    assert signal.state == "warning"
    assert pressure_signal(check_pressure(799, Backpressure()), "agents.b", 0) is None


def test_disabled_back_pressure_takes_everything_silently() -> None:
    pressure = check_pressure(5000, Backpressure(enabled=False))
    assert pressure.text is None
    assert pressure_signal(pressure, "agents.b", 0) is None
