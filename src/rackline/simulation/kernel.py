"""The loop of `replica`, compiled for the simplest server: one rank, chunked prefill, first come, first served.

It processes the same events in the same order, on the arrays of `loop_arrays` instead of objects; a test checks that
both give the same result. Slices are not assigned, because numba would compile their error messages, which takes longer
than everything else. The loop pays off from some tens of thousands of requests on, where it saves more time than its
compilation takes. Everything else runs in `replica`.
"""

# pyright: basic
from __future__ import annotations

import math

from numba import njit  # type: ignore[import-untyped]

from rackline.simulation.loop_arrays import ENDLESS, MOST_SAMPLES, NOTHING

GAP_ZERO = 4000  # bin of one second in the histogram of inter-token times
AHEAD = 1 << 16
MOST_COUNTED = 100_000  # waiting requests that a sample counts

# All parts become one function: calls that pass tuples of arrays cost twice the time of a pass, and reference counts
# of arrays taken out of tuples as much again. Nothing here allocates, so nothing need be counted.
_inlined = njit(cache=True, inline="always", _nrt=False)  # pyright: ignore[reportCallIssue]


@_inlined
def _dot(row, x):
    total = 0.0
    for i in range(len(x)):
        total += row[i] * x[i]
    return total


@_inlined
def pass_s(x, line):
    """Time of a pass for one vector of features [s]."""
    linear, difference, starts, options, gaps, ramps, overheads = line
    total = _dot(linear, x)
    for r in range(difference.shape[0]):
        total += abs(_dot(difference[r], x))
    for c in range(len(starts) - 1):
        best = math.inf
        for o in range(starts[c], starts[c + 1]):
            value = _dot(options[o], x) + abs(_dot(gaps[o], x))
            if ramps[o]:
                overhead = _dot(overheads[o], x)
                value += ramps[o] * (overhead * max(value - overhead, 0.0)) ** 0.5
            best = min(best, value)
        total += best
    return total


@_inlined
def _experts(x, places, loads, touched):
    """Tokens and experts of the busiest rank, as the compiled pass computes them."""
    tokens = x[places[0]]
    position = math.log2(tokens) * loads[0] if tokens > 1.0 else 0.0
    index = min(int(position), len(touched) - 2)
    part = min(position - index, 1.0)
    low, high = loads[1 + index], loads[2 + index]
    if places[1] >= 0:
        x[places[1]] = tokens * (low + part * (high - low))
    if places[2] >= 0:
        x[places[2]] = min(tokens, 1.0) * (touched[index] + part * (touched[index + 1] - touched[index]))


@_inlined
def _needed(phases, clock, sequences, tokens):
    """KV blocks that decoding needs for the next `tokens` tokens."""
    block = len(phases)
    whole, part = tokens // block, tokens % block
    found = whole * sequences
    for j in range(part):
        found += phases[(clock + j) % block]
    return found


@_inlined
def _count_gap(gaps, seconds, count):
    if count > 0:
        place = int(math.log(seconds) * 200.0) + GAP_ZERO if seconds > 0 else 0
        gaps[min(max(place, 0), len(gaps) - 1)] += count


@_inlined
def _count_pass(state, seconds, steps):
    state.busy_s += seconds
    state.sequence_s += state.running * seconds
    state.used_s += state.used * seconds
    state.steps += steps
    state.passes += 1
    state.now += seconds


@_inlined
def _waits(state, limits, arrival_s):
    """Whether a request waits for admission."""
    return state.stacked > 0 or (state.head < limits.requests and arrival_s[state.head] <= state.now)


@_inlined
def _sample(state, limits, arrival_s, samples):
    """Record how full the server is; when the buffer is full, drop every second sample."""
    now, head = state.now, state.head
    waiting = state.stacked + (1 if state.partial >= 0 else 0)
    j = head
    while j < limits.requests and arrival_s[j] <= now and j - head < MOST_COUNTED:
        j += 1
    row = state.samples
    samples[row, 0], samples[row, 1] = now, state.running
    samples[row, 2], samples[row, 3] = waiting + j - head, state.used
    state.samples = row + 1
    if row + 1 >= MOST_SAMPLES:
        for i in range(MOST_SAMPLES // 2):
            for j in range(samples.shape[1]):
                samples[i, j] = samples[2 * i, j]
        state.samples = MOST_SAMPLES // 2
        state.sample_s = 2.0 * (now - samples[0, 0]) / MOST_SAMPLES
    state.next_sample = now + state.sample_s


@_inlined
def _refresh(state, running):
    """Longest context and earliest end of the decoding sequences."""
    bases, ends = running.base, running.end
    longest, next_end = NOTHING, ENDLESS
    for i in range(state.running):
        longest = max(longest, bases[i])
        next_end = min(next_end, ends[i])
    state.longest_base, state.next_end = longest, next_end


@_inlined
def _drop(state, running, i):
    """Remove a decoding sequence and free its blocks."""
    requests, bases, ends, orders, phases = running
    block, base, last = len(phases), bases[i], state.running - 1
    state.used -= -(-(base + state.clock) // block)
    phases[(-base) % block] -= 1
    state.base_sum -= base
    requests[i], bases[i], ends[i], orders[i] = requests[last], bases[last], ends[last], orders[last]
    state.running = last


@_inlined
def _preempt(state, running, stack, output_len, served):
    """Preempt the request that was admitted last."""
    if state.partial >= 0:  # it was admitted after all decoding sequences
        request = state.partial
        state.used -= state.partial_held
        state.partial = -1
    else:
        i, orders = 0, running.order
        for j in range(state.running):
            if orders[j] > orders[i]:
                i = j
        request = running.request[i]
        served.generated[request] = output_len[request] - (running.end[i] - state.clock)
        served.stopped_s[request] = state.now
        _drop(state, running, i)
        _refresh(state, running)
    served.preempted[request] += 1
    stack[state.stacked] = request
    state.stacked += 1


@_inlined
def _fill(state, limits, requested, served, running, stack, chunks, lost):
    """Chunks of prompts for the next pass, a partly computed prompt first: (count, whether a request was preempted)."""
    phases, (arrival_s, input_len, output_len) = running.phases, requested
    admitted_s, generated, orders = served.admitted_s, served.generated, served.order
    requests, takes, dones = chunks
    block = len(phases)
    aside = _needed(phases, state.clock, state.running, 1)
    state.used += aside
    budget = limits.tokens - state.running
    admit = not lost
    count = 0
    if state.partial >= 0 and budget > 0:
        request, done = state.partial, state.partial_done
        take = min(input_len[request] + generated[request] - done, budget)
        need = -(-(done + take) // block) - state.partial_held
        if need > limits.blocks - state.used:
            admit, lost = False, True
            _preempt(state, running, stack, output_len, served)
        else:
            state.used += need
            state.partial_held += need
            requests[0], takes[0], dones[0] = request, take, done
            count, budget = 1, budget - take
    while admit and budget > 0 and state.running + count + (state.partial >= 0 and count == 0) < limits.sequences:
        if not _waits(state, limits, arrival_s):
            break
        request = stack[state.stacked - 1] if state.stacked > 0 else state.head
        take = min(input_len[request] + generated[request], budget)
        need = -(-take // block)
        if need > limits.blocks - state.used:
            break
        if state.stacked > 0:
            state.stacked -= 1
        else:
            state.head += 1
        state.used += need
        if math.isnan(admitted_s[request]):
            admitted_s[request] = state.now
        orders[request] = state.admissions
        state.admissions += 1
        requests[count], takes[count], dones[count] = request, take, 0
        count, budget = count + 1, budget - take
    state.used -= aside
    return count, lost


@_inlined
def _mixed_s(n, kv, longest, chunks, count, times):
    """A pass of n decoding sequences and `count` chunks of prompts [s]."""
    of_pass, of_kinds, of_experts, loads, touched = times.columns
    decode, x = times.decode, times.x
    skew_s, stage_imbalance, prefill_slowdown, floor_s, graph_tokens = times.around
    _, takes, dones = chunks
    tokens = prefix = largest = 0
    pairs = 0.0
    for i in range(count):
        take, done = takes[i], dones[i]
        tokens += take
        prefix += done
        pairs += take * (done + 0.5 * (take + 1.0))
        largest = max(largest, take)
    for i in range(len(x)):
        x[i] = 0.0
    values = (1.0, float(n + tokens), float(n + count), float(n + tokens), float(n), float(n),
              min(float(n), 1.0), 1.0, float(largest), float(tokens), float(prefix))  # fmt: skip
    for i in range(len(values)):
        if of_pass[i] >= 0:
            x[of_pass[i]] = values[i]
    what = (float(kv), float(kv), float(longest), pairs)
    for i in range(of_kinds.shape[0]):
        for j in range(4):
            if of_kinds[i, j] >= 0:
                x[of_kinds[i, j]] = what[j]
    if len(touched):
        _experts(x, of_experts, loads, touched)
    device = (pass_s(x, times.line) + skew_s) * stage_imbalance
    alone = decode[n, 0] + decode[n, 1] * kv + decode[n, 2] * longest if n else 0.0
    held = n + tokens <= graph_tokens
    seconds = max(device - alone, 0.0) * (1.0 if held else prefill_slowdown) + alone
    if floor_s and not held:
        seconds = (seconds**4 + floor_s**4) ** 0.25
    return seconds


@_inlined
def _most_steps(state, phases, room):
    """Decode steps until a sequence ends or KV blocks run out."""
    n = state.running
    most = min(AHEAD, state.next_end - state.clock)
    if n * (most // len(phases) + 1) > room and _needed(phases, state.clock, n, most) > room:
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            if _needed(phases, state.clock, n, middle) <= room:
                low = middle
            else:
                high = middle
        most = low
    return max(most, 1)


@_inlined
def _steps_to(reach, step, slope, most):
    """Fewest decode steps that take `reach` seconds, where the first takes `step` and each later one `slope` more."""
    half = step - 0.5 * slope
    if slope > 0:
        steps = math.ceil(2.0 * reach / (half + math.sqrt(half * half + 2.0 * slope * reach)))
    else:
        steps = math.ceil(reach / step) if step > 0 else most
    steps = min(max(steps, 1), most)
    while steps > 1 and (steps - 1) * half + 0.5 * slope * (steps - 1) ** 2 >= reach:
        steps -= 1
    while steps < most and steps * half + 0.5 * slope * steps**2 < reach:
        steps += 1
    return steps


@_inlined
def _finish_decoding(state, running, finish_s):
    """Remove sequences that have all their tokens."""
    i, requests, ends = 0, running.request, running.end
    while i < state.running:
        if ends[i] <= state.clock:
            finish_s[requests[i]] = state.now
            state.finished += 1
            _drop(state, running, i)
        else:
            i += 1
    _refresh(state, running)


@_inlined
def _finish_prompts(state, requested, served, running, chunks, count, gaps):
    """Prompts that a pass completes yield a token and decode from now on."""
    _, input_len, output_len = requested
    _, first_s, finish_s, stopped_s, generated, _, admission = served
    requests, bases, ends, orders, phases = running
    end, block = state.now, len(phases)
    for i in range(count):
        request, done = chunks.request[i], chunks.done[i] + chunks.take[i]
        target = input_len[request] + generated[request]
        held = -(-done // block)
        if done < target:
            state.partial, state.partial_done, state.partial_held = request, done, held
            continue
        if state.partial == request:
            state.partial = -1
        if math.isnan(first_s[request]):
            first_s[request] = end
        elif not math.isnan(stopped_s[request]):
            _count_gap(gaps, end - stopped_s[request], 1)
            stopped_s[request] = math.nan
        produced = generated[request] + 1
        generated[request] = 0
        if produced >= output_len[request]:
            finish_s[request] = end
            state.finished += 1
            state.used -= held
            continue
        j = state.running
        base = target - state.clock
        requests[j], bases[j], orders[j] = request, base, admission[request]
        ends[j] = state.clock + output_len[request] - produced
        state.longest_base = max(state.longest_base, base) if j else base
        state.next_end = min(state.next_end, ends[j]) if j else ends[j]
        state.running = j + 1
        state.base_sum += base
        phases[(-base) % block] += 1


@_inlined
def _decode(state, limits, arrival_s, phases, decode, gaps, until, lost):
    """One or more decode-only passes; returns how many."""
    n, now = state.running, state.now
    kv = state.base_sum + n * state.clock
    longest = state.longest_base + state.clock if n else 0
    most = 1 if lost else _most_steps(state, phases, limits.blocks - state.used)
    stop = until
    if state.head < limits.requests and not _waits(state, limits, arrival_s):
        stop = min(stop, arrival_s[state.head])
    step = decode[n, 0] + decode[n, 1] * kv + decode[n, 2] * longest
    slope = decode[n, 1] * n + decode[n, 2]
    steps = most
    if most > 1 and stop < now + most * (step + slope * (most - 1)):
        steps = _steps_to(stop - now, step, slope, most)
    _count_gap(gaps, step, n)
    if steps > 1:
        _count_gap(gaps, step + 0.5 * slope * steps, n * (steps - 1))
    _count_pass(state, steps * step + slope * (0.5 * steps * (steps - 1)), steps)
    return steps


@njit(cache=True, _nrt=False)  # pyright: ignore[reportCallIssue]
def advance(until, limits, state, requested, served, running, stack, chunks, log, times):
    """Run all passes that start before `until`; the arguments are those of `loop_arrays`."""
    state = state[0]
    arrival_s, phases, decode, finish_s = requested.arrival_s, running.phases, times.decode, served.finish_s
    gaps, samples = log
    while True:
        if state.running == 0 and state.partial < 0 and not _waits(state, limits, arrival_s):
            if state.head >= limits.requests or arrival_s[state.head] >= until:
                return
            state.now = max(state.now, arrival_s[state.head])
            continue
        if state.now >= until:
            return
        if state.now >= state.next_sample:
            _sample(state, limits, arrival_s, samples)
        lost = False
        while state.running and _needed(phases, state.clock, state.running, 1) > limits.blocks - state.used:
            _preempt(state, running, stack, requested.output_len, served)
            lost = True
        count = 0
        if state.partial >= 0 or _waits(state, limits, arrival_s):
            count, lost = _fill(state, limits, requested, served, running, stack, chunks, lost)
        n, steps = state.running, 1
        if count:
            longest = state.longest_base + state.clock if n else 0
            seconds = _mixed_s(n, state.base_sum + n * state.clock, longest, chunks, count, times)
            _count_pass(state, seconds, 1)
            _count_gap(gaps, seconds, n)
        else:
            steps = _decode(state, limits, arrival_s, phases, decode, gaps, until, lost)
        if n:
            state.used += _needed(phases, state.clock, n, steps)
            state.clock += steps
            if state.next_end <= state.clock:
                _finish_decoding(state, running, finish_s)
        if count:
            _finish_prompts(state, requested, served, running, chunks, count, gaps)
