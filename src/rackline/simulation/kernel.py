"""The loop of `replica` for the plainest server, compiled: one rank, chunked prefill, first come first served.

The same events in the same order, on arrays instead of objects; a test holds both equal. No slices are assigned:
numba would compile the text of their errors, which takes longer than all the rest. It earns its place from some
tens of thousands of requests on, where compiling takes less time than it saves. Everything else runs in `replica`.
"""

# pyright: basic
from __future__ import annotations

import math

from numba import njit  # type: ignore[import-untyped]

# places in the arrays of state
(N, SUM_BASE, CLOCK, USED, HEAD, STACK, PARTIAL, PARTIAL_DONE, PARTIAL_HELD, SEQUENCE, STEPS, PASSES, FINISHED,
 LONGEST, MIN_END, SAMPLES) = range(16)  # fmt: skip
NOW, BUSY, SEQUENCE_S, USED_S, NEXT_SAMPLE, SAMPLE_S = range(6)
GAP_ZERO = 4000  # place of one second in the histogram of gaps
AHEAD = 1 << 16
MOST_SAMPLES = 4096


@njit(cache=True)
def _dot(row, x):
    total = 0.0
    for i in range(len(x)):
        total += row[i] * x[i]
    return total


@njit(cache=True)
def _pass_s(x, linear, difference, starts, options, gaps, ramps, overheads):
    """The line of a pass table for one vector of features [s]."""
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


@njit(cache=True)
def _experts(x, places, loads, touches):
    """Tokens and experts of the busiest rank, as the compiled pass computes them."""
    tokens = x[places[0]]
    position = math.log2(tokens) * loads[0] if tokens > 1.0 else 0.0
    index = min(int(position), len(touches) - 2)
    part = min(position - index, 1.0)
    low, high = loads[1 + index], loads[2 + index]
    if places[1] >= 0:
        x[places[1]] = tokens * (low + part * (high - low))
    if places[2] >= 0:
        x[places[2]] = min(tokens, 1.0) * (touches[index] + part * (touches[index + 1] - touches[index]))


@njit(cache=True)
def _needed(phases, clock, n, tokens):
    block = len(phases)
    whole, part = tokens // block, tokens % block
    found = whole * n
    for j in range(part):
        found += phases[(clock + j) % block]
    return found


@njit(cache=True)
def _gap(gaps, seconds, count):
    if count > 0:
        place = int(math.log(seconds) * 200.0) + GAP_ZERO if seconds > 0 else 0
        gaps[min(max(place, 0), len(gaps) - 1)] += count


@njit(cache=True)
def _refresh(state, run_base, run_end):
    n = state[N]
    longest, end = -(1 << 60), 1 << 60
    for i in range(n):
        longest = max(longest, run_base[i])
        end = min(end, run_end[i])
    state[LONGEST], state[MIN_END] = longest, end


@njit(cache=True)
def _drop(state, phases, run_request, run_base, run_end, run_order, i):
    """Take a decoding sequence out and give its blocks back."""
    block = len(phases)
    base = run_base[i]
    state[USED] -= -(-(base + state[CLOCK]) // block)
    phases[(-base) % block] -= 1
    state[SUM_BASE] -= base
    last = state[N] - 1
    run_request[i], run_base[i], run_end[i], run_order[i] = (
        run_request[last], run_base[last], run_end[last], run_order[last],
    )  # fmt: skip
    state[N] = last


@njit(cache=True)
def _preempt(
    state, now, phases, run_request, run_base, run_end, run_order, stack, generated, outputs, last_s, preempted
):
    """Stop what was admitted last; whether it was the prompt that is not whole yet."""
    if state[PARTIAL] >= 0:  # it was admitted after all that decode
        request = state[PARTIAL]
        state[USED] -= state[PARTIAL_HELD]
        state[PARTIAL] = -1
        found = True
    else:
        i = 0
        for j in range(state[N]):
            if run_order[j] > run_order[i]:
                i = j
        request = run_request[i]
        generated[request] = outputs[request] - (run_end[i] - state[CLOCK])
        last_s[request] = now
        _drop(state, phases, run_request, run_base, run_end, run_order, i)
        _refresh(state, run_base, run_end)
        found = False
    preempted[request] += 1
    stack[state[STACK]] = request
    state[STACK] += 1
    return found


@njit(cache=True)
def _advance(
    until, limits, state, times, arrivals, inputs, outputs, admitted, first, finish, generated, last_s, preempted,
    stack, orders, phases, run_request, run_base, run_end, run_order, chunk_request, chunk_take, chunk_done, gaps,
    samples, lines, prompt_places, kind_places, expert_places, loads, touches, x, linear, difference, starts, options,
    row_gaps, ramps, overheads, numbers,
):  # fmt: skip
    """Run all passes that start before `until`."""
    total, max_seqs, most_tokens, limit = limits[0], limits[1], limits[2], limits[3]
    skew, stretch, slowdown, floor = numbers[0], numbers[1], numbers[2], numbers[3]
    block = len(phases)
    while True:
        now, n, head = times[NOW], state[N], state[HEAD]
        waiting = state[STACK] > 0 or (head < limit and arrivals[head] <= now)
        if n == 0 and state[PARTIAL] < 0 and not waiting:
            if head >= limit or arrivals[head] >= until:
                return
            times[NOW] = max(now, arrivals[head])
            continue
        if now >= until:
            return
        if now >= times[NEXT_SAMPLE]:
            behind = state[STACK] + (1 if state[PARTIAL] >= 0 else 0)
            j = head
            while j < limit and arrivals[j] <= now and j - head < 100000:
                j += 1
            row = state[SAMPLES]
            samples[row, 0], samples[row, 1], samples[row, 2], samples[row, 3] = now, n, behind + j - head, state[USED]
            state[SAMPLES] = row + 1
            if row + 1 >= MOST_SAMPLES:
                for i in range(MOST_SAMPLES // 2):
                    for j in range(samples.shape[1]):
                        samples[i, j] = samples[2 * i, j]
                state[SAMPLES] = MOST_SAMPLES // 2
                times[SAMPLE_S] = 2.0 * (now - samples[0, 0]) / MOST_SAMPLES
            times[NEXT_SAMPLE] = now + times[SAMPLE_S]
        lost = False
        while state[N] and _needed(phases, state[CLOCK], state[N], 1) > total - state[USED]:
            _preempt(state, now, phases, run_request, run_base, run_end, run_order, stack, generated, outputs, last_s,
                     preempted)  # fmt: skip
            lost = True
        # pieces of prompts
        count = 0
        if state[PARTIAL] >= 0 or state[STACK] > 0 or (state[HEAD] < limit and arrivals[state[HEAD]] <= now):
            aside = _needed(phases, state[CLOCK], state[N], 1)
            state[USED] += aside
            budget = most_tokens - state[N]
            admit = not lost
            if state[PARTIAL] >= 0 and budget > 0:
                request, done = state[PARTIAL], state[PARTIAL_DONE]
                target = inputs[request] + generated[request]
                take = min(target - done, budget)
                need = -(-(done + take) // block) - state[PARTIAL_HELD]
                if need > total - state[USED]:
                    admit, lost = False, True
                    _preempt(state, now, phases, run_request, run_base, run_end, run_order, stack, generated, outputs,
                             last_s, preempted)  # fmt: skip
                else:
                    state[USED] += need
                    state[PARTIAL_HELD] += need
                    chunk_request[0], chunk_take[0], chunk_done[0] = request, take, done
                    count, budget = 1, budget - take
            while admit and budget > 0 and state[N] + count + (state[PARTIAL] >= 0 and count == 0) < max_seqs:
                from_stack = state[STACK] > 0
                if from_stack:
                    request = stack[state[STACK] - 1]
                elif state[HEAD] < limit and arrivals[state[HEAD]] <= now:
                    request = state[HEAD]
                else:
                    break
                take = min(inputs[request] + generated[request], budget)
                need = -(-take // block)
                if need > total - state[USED]:
                    break
                if from_stack:
                    state[STACK] -= 1
                else:
                    state[HEAD] += 1
                state[USED] += need
                if math.isnan(admitted[request]):
                    admitted[request] = now
                orders[request] = state[SEQUENCE]
                state[SEQUENCE] += 1
                chunk_request[count], chunk_take[count], chunk_done[count] = request, take, 0
                count, budget = count + 1, budget - take
            state[USED] -= aside
        n = state[N]
        kv = state[SUM_BASE] + n * state[CLOCK]
        longest = state[LONGEST] + state[CLOCK] if n else 0
        if count:
            tokens = prefix = largest = 0
            pairs = 0.0
            for i in range(count):
                take, done = chunk_take[i], chunk_done[i]
                tokens += take
                prefix += done
                pairs += take * (done + 0.5 * (take + 1.0))
                largest = max(largest, take)
            for i in range(len(x)):
                x[i] = 0.0
            values = (1.0, float(n + tokens), float(n + count), float(n + tokens), float(n), float(n),
                      min(float(n), 1.0), 1.0, float(largest), float(tokens), float(prefix))  # fmt: skip
            for i in range(len(values)):
                if prompt_places[i] >= 0:
                    x[prompt_places[i]] = values[i]
            for i in range(kind_places.shape[0]):
                what = (float(kv), float(kv), float(longest), pairs)
                for j in range(4):
                    if kind_places[i, j] >= 0:
                        x[kind_places[i, j]] = what[j]
            if len(touches):
                _experts(x, expert_places, loads, touches)
            device = (_pass_s(x, linear, difference, starts, options, row_gaps, ramps, overheads) + skew) * stretch
            alone = lines[n, 0] + lines[n, 1] * kv + lines[n, 2] * longest if n else 0.0
            seconds = max(device - alone, 0.0) * slowdown + alone
            if floor:
                seconds = (seconds**4 + floor**4) ** 0.25
            end = now + seconds
            times[BUSY] += seconds
            times[SEQUENCE_S] += n * seconds
            times[USED_S] += state[USED] * seconds
            state[STEPS] += 1
            state[PASSES] += 1
            times[NOW] = end
            _gap(gaps, seconds, n)
            steps = 1
        else:
            most = min(AHEAD, state[MIN_END] - state[CLOCK])
            room = total - state[USED]
            if n * (most // block + 1) > room and _needed(phases, state[CLOCK], n, most) > room:
                low, high = 0, most
                while high - low > 1:
                    middle = (low + high) // 2
                    if _needed(phases, state[CLOCK], n, middle) <= room:
                        low = middle
                    else:
                        high = middle
                most = low
            most = 1 if lost else max(most, 1)
            stop = until
            blocked = state[STACK] > 0 or (state[HEAD] < limit and arrivals[state[HEAD]] <= now)
            if not blocked and state[HEAD] < limit:
                stop = min(stop, arrivals[state[HEAD]])
            step = lines[n, 0] + lines[n, 1] * kv + lines[n, 2] * longest
            slope = lines[n, 1] * n + lines[n, 2]
            steps = most
            if most > 1 and stop < now + most * (step + slope * (most - 1)):
                reach = stop - now
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
            seconds = steps * step + slope * (0.5 * steps * (steps - 1))
            end = now + seconds
            times[NOW] = end
            _gap(gaps, step, n)
            if steps > 1:
                _gap(gaps, step + 0.5 * slope * steps, n * (steps - 1))
            times[BUSY] += seconds
            times[SEQUENCE_S] += n * seconds
            times[USED_S] += state[USED] * seconds
            state[STEPS] += steps
            state[PASSES] += 1
        # decoding goes on
        if n:
            state[USED] += _needed(phases, state[CLOCK], n, steps)
            state[CLOCK] += steps
            if state[MIN_END] <= state[CLOCK]:
                i = 0
                while i < state[N]:
                    if run_end[i] <= state[CLOCK]:
                        finish[run_request[i]] = end
                        state[FINISHED] += 1
                        _drop(state, phases, run_request, run_base, run_end, run_order, i)
                    else:
                        i += 1
                _refresh(state, run_base, run_end)
        # prompts that are whole now
        for i in range(count):
            request, done = chunk_request[i], chunk_done[i] + chunk_take[i]
            target = inputs[request] + generated[request]
            held = -(-done // block)
            if done < target:
                state[PARTIAL], state[PARTIAL_DONE], state[PARTIAL_HELD] = request, done, held
                continue
            if state[PARTIAL] == request:
                state[PARTIAL] = -1
            if math.isnan(first[request]):
                first[request] = end
            elif not math.isnan(last_s[request]):
                _gap(gaps, end - last_s[request], 1)
                last_s[request] = math.nan
            produced = generated[request] + 1
            generated[request] = 0
            if produced >= outputs[request]:
                finish[request] = end
                state[FINISHED] += 1
                state[USED] -= held
                continue
            j = state[N]
            base = target - state[CLOCK]
            run_request[j], run_base[j], run_order[j] = request, base, orders[request]
            run_end[j] = state[CLOCK] + outputs[request] - produced
            state[LONGEST] = max(state[LONGEST], base) if j else base
            state[MIN_END] = min(state[MIN_END], run_end[j]) if j else run_end[j]
            state[N] = j + 1
            state[SUM_BASE] += base
            phases[(-base) % block] += 1
