"""Verify events: size, structure, id, right to write and signature; on worker threads, or on the loop in slices.

Verifying has no side effects. With two usable processors or more, worker threads verify slices of jobs and return them
in any order; submitters restore the order. The costly part, the signature, releases the interpreter lock. On one
processor threads only take time from the event loop and the writer, so the loop verifies for at most a millisecond at a
time and serves everything else between two slices. Either way the loop immediately verifies a small event that is alone
on the whole path, and also the events of a batch signature, because they share the only part that threads would verify
in parallel; for a whole batch it builds the hash tree once. It verifies once per iteration, for at most two
milliseconds (three if the events turn out not to be a whole batch), so that a flood cannot keep it busy.

Usable processors are those of the affinity mask, within the quotas of the control groups (cgroup v2: cpu.max, v1:
cpu.cfs_quota_us).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, Protocol

import structlog

from posthouse.keys.signature import is_whole_batch, verify
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import BATCH_PREFIX, Event, check_publishable, check_structure, decode_event, read_event
from posthouse.model.limits import BATCH_MAX_EVENTS, KIB, MILLISECOND_NS
from posthouse.relay.accept.submission import Job
from posthouse.relay.store.event_rows import EventRow, event_row, mirrored_row

log = structlog.get_logger(__name__)
OnVerified = Callable[[Sequence[Job]], None]
LONE_BYTES = 4 * KIB  # of JSON: verified in about a tenth of a millisecond, most of it the signature
_BATCH_MARK = f'"sig":"{BATCH_PREFIX}'.encode()  # in an event's JSON; a match elsewhere only costs reading the clock
BATCH_BYTES = 128 * KIB  # of JSON: a whole batch of 64 events is verified in about a millisecond
SLICE_NS = MILLISECOND_NS  # how long the event loop verifies before it serves everything else
LONE_SLICE_NS = 2 * MILLISECOND_NS  # at once: more than the largest batch takes
SLICE_JOBS = 16  # of a worker thread: about a millisecond of signatures, long enough to pay, short enough to share
REPORT_JOBS = 2 * SLICE_JOBS  # reported at once by a busy worker: a report makes it wait for the interpreter lock


class _Checked(NamedTuple):
    """An event whose structure and id are valid, and whose author may write it if the signature is valid too."""

    event: Event
    #: as encode_event returns it
    text: bytes
    canonical: bytes
    mesh: str


def verify_job(job: Job) -> None:
    """Set the row of a job whose event is valid, else its refusal."""
    try:
        checked = _check(job)
        verify(checked.event.pubkey, checked.canonical, checked.event.sig)
        job.row = _row(job, checked)
    except PosthouseError as refusal:
        job.refusal = refusal
    except Exception as defect:
        log.exception("check_failed")
        job.refusal = error("internal", reason=type(defect).__name__)  # a lost job would block its submitter forever


def verify_whole_batch(jobs: Sequence[Job]) -> bool:
    """Set the rows of jobs that are one whole batch of valid events, in order; False if they are anything else.

    The tree of the batch is built once for all of them. After False none of the jobs is decided.
    """
    try:
        checked = [_check(job) for job in jobs]
        events = [each.event for each in checked]
        author = events[0].pubkey
        if any(event.pubkey != author for event in events):
            return False
        if not is_whole_batch(author, [event.id for event in events], [event.sig for event in events]):
            return False
        rows = [_row(job, each) for job, each in zip(jobs, checked, strict=True)]
    except Exception:  # noqa: BLE001 - verify_job meets it again, and says which job it belongs to
        return False
    for job, row in zip(jobs, rows, strict=True):
        job.row = row
    return True


def _check(job: Job) -> _Checked:
    """Check everything but the signature, or raise the refusal."""
    event, text = read_event(job.raw)
    job.event_id = event.id
    check_publishable(event)
    canonical, mesh = check_structure(event), event.mesh
    if (refusal := job.submission.submitter.right_error(event, mesh)) is not None:
        raise refusal  # a key that may not write costs no signature
    return _Checked(event, text, canonical, mesh)


def _row(job: Job, checked: _Checked) -> EventRow:
    row = event_row(checked.event, checked.canonical, checked.text, checked.mesh)
    mirrored_by = job.submission.submitter.mirrored_by
    return row if mirrored_by is None else mirrored_row(row, mirrored_by)


def verify_proof(raw: bytes) -> Event:
    """Return an event that is not published, such as a proof, with structure, id and signature verified."""
    event = decode_event(raw)
    verify(event.pubkey, check_structure(event), event.sig)
    return event


class Verifier(Protocol):
    """Verifies jobs; `on_verified` gets them on the event loop."""

    @property
    def waiting(self) -> int:
        """How many jobs wait to be verified."""
        ...

    def verify_now(self, jobs: Sequence[Job]) -> int:
        """Verify jobs of a lone submission immediately while they are cheap, and return how many were verified.

        `on_verified` is not called for them.
        """
        ...

    def add(self, jobs: Sequence[Job]) -> None:
        """Queue jobs."""
        ...

    def close(self) -> None:
        """End the threads, if there are any, after the jobs they have."""
        ...


def open_verifier(threads: int, on_verified: OnVerified) -> Verifier:
    """Return a verifier with this number of worker threads; with none it verifies on the event loop."""
    return ThreadVerifier(threads, on_verified) if threads else LoopVerifier(on_verified)


class _LoneVerifier:
    """Verifies a lone submission on the event loop, once per iteration, for at most LONE_SLICE_NS."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._loop = asyncio.get_running_loop()
        self._is_used = False

    def verify(self, jobs: Sequence[Job]) -> int:
        """Verify the first jobs if they are cheap; return how many were verified."""
        if self._is_used or len(jobs[0].raw) > LONE_BYTES or (len(jobs) > 1 and _BATCH_MARK not in jobs[0].raw):
            return 0
        if 1 < len(jobs) <= BATCH_MAX_EVENTS and jobs[0].submission.size <= BATCH_BYTES and verify_whole_batch(jobs):
            return len(jobs)
        count = _verify_for_slice(jobs, self._now_ns, LONE_SLICE_NS)
        if jobs[0].row is None:  # refused, so it has left the path; a valid event stays on the path until its commit
            self._is_used = True
            self._loop.call_soon(self._reset)
        return count

    def _reset(self) -> None:
        self._is_used = False


def _verify_for_slice(jobs: Iterable[Job], now_ns: Callable[[], int], slice_ns: int) -> int:
    """Verify jobs while the next one is likely to fit into the slice, at least one; return how many."""
    begin_ns = before_ns = now_ns()
    count = 0
    for count, job in enumerate(jobs, start=1):  # noqa: B007 - the last one is the result
        verify_job(job)
        after_ns = now_ns()
        if after_ns - begin_ns + (after_ns - before_ns) > slice_ns:
            break
        before_ns = after_ns
    return count


class LoopVerifier:
    """Verifies on the event loop, in slices of at most a millisecond."""

    def __init__(self, on_verified: OnVerified, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._on_verified = on_verified
        self._now_ns = now_ns
        self._loop = asyncio.get_running_loop()
        self._lone = _LoneVerifier(now_ns)
        self._jobs: deque[Job] = deque()
        self._is_scheduled = False

    @property
    def waiting(self) -> int:
        return len(self._jobs)

    def verify_now(self, jobs: Sequence[Job]) -> int:
        return 0 if self._jobs else self._lone.verify(jobs)

    def add(self, jobs: Sequence[Job]) -> None:
        self._jobs.extend(jobs)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._verify_slice)

    def close(self) -> None:
        """Do nothing: there are no threads."""

    def _verify_slice(self) -> None:
        """Verify one slice of the jobs, then yield to the loop."""
        count = _verify_for_slice(self._jobs, self._now_ns, SLICE_NS)
        verified = [self._jobs.popleft() for _ in range(count)]
        if self._jobs:
            self._loop.call_soon(self._verify_slice)
        else:
            self._is_scheduled = False
        self._on_verified(verified)


class ThreadVerifier:
    """Verifies on worker threads; jobs that arrive while all threads are busy wait."""

    def __init__(self, threads: int, on_verified: OnVerified) -> None:
        self._on_verified = on_verified
        self._loop = asyncio.get_running_loop()
        self._lone = _LoneVerifier(time.monotonic_ns)
        self._jobs: deque[Job] = deque()
        #: True wakes a worker, False stops it
        self._wake_ups: SimpleQueue[bool] = SimpleQueue()
        self._idle = threads
        self._threads = [
            threading.Thread(target=self._serve, name=f"verifier {number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        return len(self._jobs)

    def verify_now(self, jobs: Sequence[Job]) -> int:
        return 0 if self._idle < len(self._threads) else self._lone.verify(jobs)

    def add(self, jobs: Sequence[Job]) -> None:
        self._jobs.extend(jobs)
        self._wake_workers()

    def close(self) -> None:
        for _ in self._threads:
            self._wake_ups.put(False)
        for thread in self._threads:
            thread.join()

    def _wake_workers(self) -> None:
        """Wake as many idle workers as there are jobs for."""
        for _ in range(min(self._idle, len(self._jobs))):
            self._idle -= 1
            self._wake_ups.put(True)

    def _take_back(self, jobs: Sequence[Job], is_idle: bool) -> None:
        if is_idle:
            self._idle += 1
            self._wake_workers()  # jobs may have come after the worker found none
        if jobs:
            self._on_verified(jobs)

    def _serve(self) -> None:
        while self._wake_ups.get():
            verified: list[Job] = []
            is_idle = False
            jobs = self._take_slice()
            while not is_idle:
                for job in jobs:
                    verify_job(job)
                verified += jobs
                jobs = self._take_slice()
                is_idle = not jobs
                if is_idle or len(verified) >= REPORT_JOBS:
                    self._loop.call_soon_threadsafe(self._take_back, verified, is_idle)
                    verified = []

    def _take_slice(self) -> list[Job]:
        """Return the next jobs, an empty list when none waits; called by the workers."""
        jobs: list[Job] = []
        try:
            for _ in range(min(SLICE_JOBS, -(-len(self._jobs) // len(self._threads)))):
                jobs.append(self._jobs.popleft())
        except IndexError:  # another worker was faster
            pass
        return jobs


MIN_PROCESSORS = 2  # measured: on two, threads accept a fifth more events with 64 in flight than the loop alone
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def verifier_threads(processors: int) -> int:
    """Return how many threads verify signatures on so many usable processors; 0: the event loop verifies."""
    return processors if processors >= MIN_PROCESSORS else 0


def usable_processors(affinity: int, quotas: Iterable[float]) -> int:
    """Return how many processors a process may use, given its affinity and the quotas of its control groups."""
    return max(1, int(min([float(affinity), *quotas])))


def count_processors() -> int:
    """Return how many processors this process may use."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return usable_processors(affinity, read_quotas(_CGROUPS, _OWN_GROUPS))


def read_quotas(cgroups: Path, own_groups: Path) -> Iterator[float]:
    """Yield the processor quotas of a process: of its control group and of every group above it."""
    for controllers, path in _own_paths(own_groups):
        folder = cgroups if not controllers else cgroups / controllers
        group = (folder / path.strip("/")) if path != "/" else folder
        for each in (group, *group.parents):
            quota = _read_v2(each / "cpu.max") if not controllers else _read_v1(each)
            if quota is not None:
                yield quota
            if each == folder:
                break


def _own_paths(own_groups: Path) -> Iterator[tuple[str, str]]:
    """Yield the controllers and the path of each hierarchy that may limit processors; v2 has no controllers."""
    for line in (_read(own_groups) or "").splitlines():
        _number, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            yield controllers, path


def _read_v2(file: Path) -> float | None:
    """Return the quota of a cpu.max file: `max 100000`, or microseconds per period."""
    fields = (_read(file) or "").split()
    return int(fields[0]) / int(fields[1]) if len(fields) == 2 and fields[0] != "max" else None


def _read_v1(group: Path) -> float | None:
    quota_us, period_us = (_read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return int(quota_us) / int(period_us) if quota_us and period_us and int(quota_us) > 0 else None


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
