"""Signals, callbacks, threads, forks, memory."""

import multiprocessing
import os
import signal
import threading
import time

import numpy as np
import pytest

import fmm


def test_progress_and_cancellation(rng):
    seen = []
    plan = fmm.Plan("laplace", rng.random((3000, 3)), progress=lambda phase, done: seen.append((phase, done)))
    plan.apply(np.ones(3000))
    assert {"tree", "p2p"} <= {phase for phase, _ in seen} and all(0 <= done <= 1 for _, done in seen)
    with pytest.raises(KeyboardInterrupt):
        fmm.Plan("laplace", rng.random((3000, 3)), progress=lambda phase, done: False)


def test_a_line_of_progress(rng, capsys, monkeypatch):
    monkeypatch.setattr(fmm.Progress.__init__, "__defaults__", (None, 0.0))
    plan = fmm.Plan("laplace", rng.random((3000, 3)), progress=True)
    plan.apply(np.ones(3000))
    shown = capsys.readouterr().err
    assert "tree" in shown and "p2p" in shown and "█" in shown and shown.endswith("\r")
    # The line is erased.
    assert not shown.split("\r")[-2].strip()


def test_an_exception_of_the_callback_comes_back(rng):
    def fails(phase, done):
        raise LookupError(phase)

    with pytest.raises(LookupError):
        fmm.Plan("laplace", rng.random((3000, 3)), progress=fails)


def test_a_callback_cannot_use_its_plan(rng):
    plans = []

    def uses(phase, done):
        if plans:
            plans[0].apply(np.ones(100))

    plans.append(fmm.Plan("laplace", rng.random((100, 3)), progress=uses))
    with pytest.raises(RuntimeError, match="its own plan"):
        plans[0].apply(np.ones(100))


def test_control_c_ends_a_sum(rng):
    plan = fmm.Plan("laplace", rng.random((600_000, 3)), method="direct", threads=1)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    # A process in the background may have been told to ignore the signal.
    held = signal.signal(signal.SIGINT, signal.default_int_handler)
    start = time.process_time()
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            plan.apply(np.ones(600_000))
    finally:
        signal.signal(signal.SIGINT, held)
    # Seconds of processor, because other processes may be busy. The whole sum takes some minutes, a part of it three seconds.
    assert time.process_time() - start < 10
    small = fmm.Plan("laplace", rng.random((100, 3)))
    assert small.apply(np.ones(100)).potential.shape == (100,)


def test_threads_share_a_plan(rng):
    plan = fmm.Plan("laplace", rng.random((3000, 3)), threads=1)
    q = rng.standard_normal((4, 3000))
    expected, found = [plan.apply(x).potential for x in q], [None] * 4

    def work(k):
        found[k] = plan.apply(q[k]).potential

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert all(np.array_equal(a, b) for a, b in zip(expected, found))


def _in_child(plan, queue):
    try:
        plan.apply(np.ones(10))
    except RuntimeError as e:
        queue.put(str(e))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_is_told(rng):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(fmm.Plan("laplace", rng.random((10, 3))), queue))
    child.start()
    assert "forked child" in queue.get()
    child.join()


def test_memory_does_not_grow(rng):
    resource = pytest.importorskip("resource")
    x, q = rng.random((200, 3)), np.ones(200)

    def many(count):
        for _ in range(count):
            fmm.Plan("laplace", x, order=4, threads=1).apply(q)

    many(50)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    many(500)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 5000
