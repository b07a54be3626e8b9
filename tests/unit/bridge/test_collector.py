"""Python's collector, in processes of their own: what is frozen here would stay frozen for all tests."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def _run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_stays_is_not_walked_over_until_it_is_let_go_of() -> None:
    """A lost partition leaves its objects in cycles: they must not stay in memory."""
    _run(
        """
        import gc, weakref
        from bridge.collector import let_go, reduce_collections, excluded_objects

        class Held:
            pass

        reduce_collections()
        garbage = Held()
        garbage.itself = garbage
        seen = weakref.ref(garbage)
        del garbage
        before = gc.get_freeze_count()
        with excluded_objects():
            assert seen() is None, "what was garbage before stays with it"
            held = [[n] for n in range(1000)]
            held.append(held)
            one = Held()
            one.held = held
        assert gc.get_freeze_count() >= before + 1000
        seen = weakref.ref(one)
        held.append(one)
        del one, held
        gc.collect()
        assert seen() is not None
        let_go()
        assert seen() is None
        """
    )


def test_a_process_that_did_not_ask_for_it_keeps_its_collector() -> None:
    _run(
        """
        import gc
        from bridge.collector import let_go, excluded_objects

        before = gc.get_threshold(), gc.get_freeze_count()
        with excluded_objects():
            held = [[n] for n in range(1000)]
        let_go()
        assert (gc.get_threshold(), gc.get_freeze_count()) == before
        """
    )
