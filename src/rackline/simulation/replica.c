/* The loop of replica.py in C: ranks in lockstep, in the order of arrival or of priority, without caches of prefixes.

   It processes the same events in the same order with the same arithmetic; tests hold it to replica.py. Names are those
   of replica.py, rank.py, decoding.py, decode_steps.py and clock.py, where each step is explained. native.py makes the
   structures. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t i64;

enum { AHEAD = 1 << 16, AT_ONCE = 256, GAPS = 24000, GAP_ZERO = 12000, SAMPLES = 4096 };
enum { MIXED, PROMPTS_FIRST, BATCH };
enum { BY_CHUNK, BY_PROMPT, BY_REQUEST };
enum { DONE, MORE, STUCK };
enum { SILENT, STOPS, GOES_ON }; /* whether a replica tells of requests that are done, and stops to do so */
enum {
    TOKENS, LOGIT_ROWS, GROUP_TOKENS, DECODE_SEQUENCES, DECODE_TOKENS, HAS_DECODE, HAS_PREFILL, CHUNK_TOKENS,
    PREFILL_TOKENS, CHUNK_PREFIX_TOKENS, KV_OF_ALL, ONE, EXPERT_TOKENS, EXPERTS_TOUCHED, PLACES
};
static const i64 NEVER = (i64)1 << 60;

/* What is known of each request, shared by all replicas of a run; times are NaN until they are known. */
typedef struct {
    const i64 *input_len, *output_len, *computed, *priority;
    double *engine_s, *admitted_s, *first_s, *finish_s, *last_s;
    i64 *generated, *preempted;
    uint8_t *ready;
    i64 *num_ready;
    i64 *base, *end_at, *held, *done;
    int32_t *place, *run_before, *run_after, *fill_before, *fill_after;
    uint8_t *fills, *decodes;
} Log;

/* A kind of attention: reads a + b x from `start` on, else the sum of weight min(x + shift, reach). Pairs of a prompt
   are the same sums over its tokens, at most a share of all pairs. */
typedef struct {
    double a, b, start, shift, share;
    i64 kv_at, pairs_at, longest_at, attended_at, causal, first, end; /* parts of its law */
} Kind;

typedef struct {
    i64 width, num_kinds, num_streams, num_bends, last_load;
    double host_s, factor, skew_s, imbalance, per_octave;
    const i64 *at;
    const Kind *kinds;
    const double *weights, *reaches;             /* of the parts of laws */
    const double *shares;                        /* of each feature in a half batch */
    const i64 *starts, *columns;                 /* sparse rows */
    const double *values;
    const i64 *streams, *choices, *options;      /* rows: (line, first gap, end, first choice, end), ... */
    const double *ramps, *loads, *touched;
    const double *bends;                         /* (constant, per token, per token of the group, per sequence, per KV) */
    double *x;
} Table;

typedef struct {
    const Table *table, *draft;
    i64 drafts, verified, bends_known;
    double tokens_per_step, straight_from, floor_s, held_tokens, host_s_per_sequence, prefill_slowdown;
    i64 has_host, graphs_need_all;
    const double *hosts; /* of a decode step by its sequences */
} Clock;

typedef struct {
    i64 index, count, sum_base, longest, shortest;
    i64 *members, *bases, *phases; /* decoding sequences */
    i64 capacity;
    i64 *waiting, first, queued, room; /* ring of requests; by priority a heap, whose first is 0 */
    i64 running, last_run, first_fill, last_fill, filling;
    i64 used, settled, preemptions;
    i64 is_open, stuck, yields, is_changed, pauses, is_late;
    double waited_s;
    struct Joined { double time_s; i64 count; } *joined;
    i64 num_joined, joined_room;
} Rank;

typedef struct { double time_s; i64 serial, request; } Arrival;
typedef struct { i64 end, rank, request; } End;
typedef struct { i64 rank, request, take, done; } Chunk;

/* The fields up to `seconds` are read and written from Python. */
typedef struct {
    const Clock *clock;
    const Log *log;
    i64 num_ranks, group_size, block_size, num_blocks, fixed_blocks, grows, max_num_seqs, max_batched_tokens, reserve,
        passes_as, chunked, aligned, some_passes, all_passes, idle_releases, counts_always, holds_chunks, every,
        decodes_after, hands_over, tells, by_priority, for_urgent;
    double interval_s;
    double now, next_start;
    i64 load, queued, held_blocks, finished, num_done, used_blocks, steps, passes, num_samples;
    double busy_s, sequence_s, used_s, prompt_pass_s, prompt_rank_s;
    i64 *gaps;
    double *samples;
    i64 *done;
    double *done_s;
    double next_sample, sample_s;
    i64 beside, any_late, held_passes, gathered_passes, owed_passes;
    Rank *ranks;
    i64 *loads, *together, clock_tokens, clock_steps, count, unsettled, present;
    double *rooms;
    i64 any_changed, any_yields, done_room;
    End *ends;
    i64 num_ends, ends_room;
    End *ended;
    i64 num_ended, ended_room;
    Arrival *queue, *late;
    i64 queue_first, queue_count, queue_room, num_late, late_room, serial;
    Chunk *chunks;
    i64 num_chunks, chunks_room;
    i64 *fill_now;
    i64 fill_room;
    i64 *slowest, num_slowest, *found, *order;
    double *slowest_tokens, *durations, *paces;
    i64 num_durations;
} Replica;

static void *more(void *old, i64 *room, i64 needed, size_t size) {
    if (needed <= *room) return old;
    i64 next = *room ? *room : 16;
    while (next < needed) next *= 2;
    *room = next;
    return realloc(old, (size_t)next * size);
}

static i64 up(i64 a, i64 b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }
static i64 mod(i64 a, i64 b) { i64 r = a % b; return r < 0 ? r + b : r; }
static i64 least(i64 a, i64 b) { return a < b ? a : b; }
static i64 most(i64 a, i64 b) { return a > b ? a : b; }

/* time of a pass */

static double dot(const Table *t, i64 row, const double *x) {
    double total = 0.0;
    for (i64 i = t->starts[row]; i < t->starts[row + 1]; i++) total += t->values[i] * x[t->columns[i]];
    return total;
}

static double call(const Table *t) {
    double *x = t->x;
    const i64 *at = t->at;
    for (i64 i = 0; i < t->width; i++) x[i] *= t->shares[i];
    x[at[ONE]] = 1.0;
    if (t->last_load >= 0) {
        double group = x[at[GROUP_TOKENS]];
        double position = group > 1.0 ? log2(group) * t->per_octave : 0.0;
        i64 index = position < (double)t->last_load ? (i64)position : t->last_load;
        double part = fmin(position - (double)index, 1.0);
        x[at[EXPERT_TOKENS]] = group * (t->loads[index] + part * (t->loads[index + 1] - t->loads[index]));
        x[at[EXPERTS_TOUCHED]] =
            fmin(group, 1.0) * (t->touched[index] + part * (t->touched[index + 1] - t->touched[index]));
    }
    double longest = 0.0;
    for (i64 s = 0; s < t->num_streams; s++) {
        const i64 *stream = t->streams + 5 * s;
        double total = dot(t, stream[0], x);
        for (i64 row = stream[1]; row < stream[2]; row++) total += fabs(dot(t, row, x));
        for (i64 c = stream[3]; c < stream[4]; c++) {
            double best = INFINITY;
            for (i64 o = t->choices[2 * c]; o < t->choices[2 * c + 1]; o++) {
                const i64 *option = t->options + 3 * o;
                double value = dot(t, option[0], x) + fabs(dot(t, option[1], x));
                if (t->ramps[o]) {
                    double overhead = dot(t, option[2], x);
                    value += t->ramps[o] * sqrt(overhead * fmax(value - overhead, 0.0));
                }
                best = fmin(best, value);
            }
            total += best;
        }
        if (!s || total > longest) longest = total;
    }
    return (t->factor * (t->host_s + longest) + t->skew_s) * t->imbalance;
}

static double read_law(const Table *t, const Kind *kind, double context) {
    if (context >= kind->start) return kind->a + kind->b * context;
    double found = 0.0;
    for (i64 i = kind->first; i < kind->end; i++) found += t->weights[i] * fmin(context + kind->shift, t->reaches[i]);
    return found;
}

static double pairs_of(const Table *t, const Kind *kind, double chunk, double before) {
    double found = 0.0;
    for (i64 i = kind->first; i < kind->end; i++) {
        double growing = fmin(fmax(t->reaches[i] - before, 0.0), chunk);
        double window = t->reaches[i] < INFINITY ? (chunk - growing) * t->reaches[i] : 0.0;
        found += t->weights[i] * (growing * before + growing * (growing + 1.0) / 2.0 + window);
    }
    return fmin(found, kind->share * (chunk * before + chunk * (chunk + 1.0) / 2.0));
}

static double *empty(const Table *t) {
    memset(t->x, 0, (size_t)t->width * sizeof(double));
    return t->x;
}

static void decodes_in(const Table *t, double n, double tokens, double group) {
    double *x = empty(t);
    const i64 *at = t->at;
    x[at[TOKENS]] = x[at[LOGIT_ROWS]] = x[at[DECODE_TOKENS]] = tokens;
    x[at[GROUP_TOKENS]] = group;
    x[at[DECODE_SEQUENCES]] = n;
    x[at[HAS_DECODE]] = 1.0;
}

static double straight_of(const Table *t, double n, double kv, double longest, double verified, double group) {
    decodes_in(t, n, n * verified, group);
    if (!t->num_kinds) t->x[t->at[KV_OF_ALL]] = kv;
    for (i64 k = 0; k < t->num_kinds; k++) {
        const Kind *kind = t->kinds + k;
        double read = kind->a * n + kind->b * kv;
        t->x[kind->kv_at] = read;
        t->x[kind->pairs_at] = read * verified;
        t->x[kind->longest_at] = kind->a + kind->b * longest;
    }
    return call(t);
}

static double behind(double device, double host) {
    return host ? sqrt(sqrt(pow(device, 4.0) + pow(host, 4.0))) : device;
}

static double straight(const Clock *c, i64 n, double kv, double longest, double group) {
    double v = (double)c->verified;
    double seconds = behind(straight_of(c->table, (double)n, kv, longest, v, group), c->hosts[n]);
    if (c->draft) seconds += (double)c->drafts * straight_of(c->draft, (double)n, kv, longest, 1.0, group / v);
    return seconds;
}

static double bent_of(const Table *t, const Rank *r, double clock, double advance, double verified, double group) {
    double n = (double)r->count;
    decodes_in(t, n, n * verified, group);
    double base = clock + advance;
    if (!t->num_kinds) t->x[t->at[KV_OF_ALL]] = (double)r->sum_base + n * base;
    for (i64 k = 0; k < t->num_kinds; k++) {
        const Kind *kind = t->kinds + k;
        double kv = 0.0;
        for (i64 i = 0; i < r->count; i++) kv += read_law(t, kind, (double)r->bases[i] + base);
        t->x[kind->kv_at] = kv;
        t->x[kind->pairs_at] = kv * verified;
        t->x[kind->longest_at] = read_law(t, kind, (double)r->longest + base);
    }
    return call(t);
}

/* a step in which attention reads some contexts in part */
static double bent(const Clock *c, const Rank *r, double clock, double advance, double group) {
    double v = (double)c->verified;
    double seconds = behind(bent_of(c->table, r, clock, advance, v, group), c->hosts[r->count]);
    if (c->draft) seconds += (double)c->drafts * bent_of(c->draft, r, clock, advance, 1.0, group / v);
    return seconds;
}

static double prompts_s(const Clock *c, i64 n, double kv, double longest, const Chunk *chunks, i64 count, double group,
                        double alone_s, int others) {
    const Table *t = c->table;
    const i64 *at = t->at;
    double tokens = 0.0, prefix = 0.0, largest = 0.0, pairs = 0.0, decoded = (double)(n * c->verified);
    for (i64 i = 0; i < count; i++) {
        double take = (double)chunks[i].take, done = (double)chunks[i].done;
        tokens += take;
        prefix += done;
        pairs += take * (done + 0.5 * (take + 1.0));
        largest = fmax(largest, take);
    }
    double *x = empty(t);
    x[at[TOKENS]] = decoded + tokens;
    x[at[LOGIT_ROWS]] = decoded + (double)count;
    x[at[GROUP_TOKENS]] = group;
    if (n) {
        double sequences = (double)n, mean = kv / sequences;
        x[at[DECODE_SEQUENCES]] = sequences;
        x[at[DECODE_TOKENS]] = decoded;
        x[at[HAS_DECODE]] = 1.0;
        if (!t->num_kinds) x[at[KV_OF_ALL]] = kv;
        for (i64 k = 0; k < t->num_kinds; k++) {
            const Kind *kind = t->kinds + k;
            double read = mean >= kind->start ? kind->a * sequences + kind->b * kv : sequences * read_law(t, kind, mean);
            x[kind->kv_at] = read;
            x[kind->pairs_at] = read * (double)c->verified;
            x[kind->longest_at] = read_law(t, kind, longest);
        }
    }
    if (tokens) {
        x[at[HAS_PREFILL]] = 1.0;
        x[at[CHUNK_TOKENS]] = largest;
        x[at[PREFILL_TOKENS]] = tokens;
        x[at[CHUNK_PREFIX_TOKENS]] = prefix;
        for (i64 k = 0; k < t->num_kinds; k++) {
            const Kind *kind = t->kinds + k;
            double attended = pairs;
            if (!kind->causal) {
                attended = 0.0;
                for (i64 i = 0; i < count; i++)
                    attended += pairs_of(t, kind, (double)chunks[i].take, (double)chunks[i].done);
            }
            x[kind->attended_at] = attended;
        }
    }
    double device = call(t);
    if (!tokens) return device;
    if (n && c->has_host)
        alone_s = sqrt(sqrt(fmax(pow(alone_s, 4.0) - pow(c->hosts[n], 4.0), 0.0)));
    int held = decoded + tokens <= c->held_tokens && !(others && c->graphs_need_all);
    double stretched = fmax(device - alone_s, 0.0) * (held ? 1.0 : c->prefill_slowdown) + alone_s;
    double host_s = c->floor_s;
    if (c->held_tokens || c->host_s_per_sequence)
        host_s = (held ? 0.0 : c->floor_s) + c->host_s_per_sequence * (double)n;
    return behind(stretched, host_s);
}

/* the shared token clock */

static i64 token_clock(const Replica *p, i64 steps) {
    double rate = p->clock->tokens_per_step;
    return rate == 1.0 ? steps : (i64)floor((double)steps * rate + 1e-9);
}

static i64 tokens_of(const Replica *p, i64 steps) {
    return p->clock->tokens_per_step == 1.0 ? steps : token_clock(p, p->clock_steps + steps) - p->clock_tokens;
}

static i64 steps_within(const Replica *p, i64 tokens) {
    double rate = p->clock->tokens_per_step;
    if (rate == 1.0) return tokens;
    i64 steps = most((i64)((double)(p->clock_tokens + tokens) / rate) - p->clock_steps + 1, 0);
    while (steps && tokens_of(p, steps) > tokens) steps--;
    return steps;
}

static int before_end(const End *a, const End *b) {
    if (a->end != b->end) return a->end < b->end;
    if (a->rank != b->rank) return a->rank < b->rank;
    return a->request < b->request;
}

static void push_end(Replica *p, End one) {
    p->ends = more(p->ends, &p->ends_room, p->num_ends + 1, sizeof(End));
    i64 i = p->num_ends++;
    while (i && before_end(&one, p->ends + (i - 1) / 2)) {
        p->ends[i] = p->ends[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    p->ends[i] = one;
}

static End pop_end(Replica *p) {
    End first = p->ends[0], last = p->ends[--p->num_ends];
    i64 i = 0;
    for (;;) {
        i64 child = 2 * i + 1;
        if (child >= p->num_ends) break;
        if (child + 1 < p->num_ends && before_end(p->ends + child + 1, p->ends + child)) child++;
        if (!before_end(p->ends + child, &last)) break;
        p->ends[i] = p->ends[child];
        i = child;
    }
    p->ends[i] = last;
    return first;
}

static i64 steps_to_end(Replica *p) {
    while (p->num_ends && p->log->end_at[p->ends[0].request] != p->ends[0].end) pop_end(p);
    if (!p->num_ends) return NEVER;
    i64 end = p->ends[0].end;
    double rate = p->clock->tokens_per_step;
    if (rate == 1.0) return end - p->clock_tokens;
    i64 steps = most((i64)ceil((double)end / rate) - p->clock_steps - 1, 1);
    while (token_clock(p, p->clock_steps + steps) < end) steps++;
    return steps;
}

static void find_ended(Replica *p) {
    p->num_ended = 0;
    while (p->num_ends && p->ends[0].end <= p->clock_tokens) {
        End one = pop_end(p);
        if (p->log->end_at[one.request] != one.end) continue;
        if (p->num_ended) {
            End *last = p->ended + p->num_ended - 1;
            if (last->rank == one.rank && last->request == one.request) continue;
        }
        p->ended = more(p->ended, &p->ended_room, p->num_ended + 1, sizeof(End));
        i64 i = p->num_ended++;
        if (p->clock->tokens_per_step != 1.0) /* with drafts, some ends have been passed */
            for (; i && p->ended[i - 1].rank > one.rank; i--) p->ended[i] = p->ended[i - 1];
        p->ended[i] = one;
    }
}

static i64 blocks_between(const i64 *phases, i64 size, i64 count, i64 clock, i64 tokens) {
    i64 found = tokens / size * count, first = mod(clock, size);
    for (i64 i = 0; i < tokens % size; i++) found += phases[(first + i) % size];
    return found;
}

static i64 new_blocks(const Replica *p, const Rank *r, i64 tokens) {
    return blocks_between(r->phases, p->block_size, r->count, p->clock_tokens, tokens);
}

/* a rank */

static i64 blocks_of(const Replica *p, i64 tokens) {
    return (p->grows ? up(tokens, p->block_size) : 0) + p->fixed_blocks;
}

static void settle(Replica *p, Rank *r) {
    r->is_changed = p->any_changed = 1;
    if (r->settled == p->clock_tokens) return;
    if (r->count && p->reserve != BY_REQUEST) {
        i64 tokens = p->clock_tokens - r->settled;
        i64 need = blocks_between(r->phases, p->block_size, r->count, r->settled, tokens);
        r->used += need;
        p->used_blocks += need;
        p->unsettled -= need;
    }
    r->settled = p->clock_tokens;
}

static void take(Replica *p, Rank *r, i64 blocks) {
    r->used += blocks;
    p->used_blocks += blocks;
}

static i64 free_blocks(const Replica *p, const Rank *r) { return p->num_blocks - r->used; }

static i64 rank_blocks(const Replica *p, const Rank *r) {
    i64 since = p->clock_tokens - r->settled;
    if (!since || p->reserve == BY_REQUEST) return r->used;
    return r->used + blocks_between(r->phases, p->block_size, r->count, r->settled, since);
}

static double room_of(const Replica *p, const Rank *r) {
    if (p->reserve == BY_REQUEST || !r->count) return INFINITY;
    i64 blocks = free_blocks(p, r), size = p->block_size;
    i64 left = mod(blocks, r->count), tokens = (blocks - left) / r->count * size, at = mod(p->clock_tokens, size);
    while ((left -= r->phases[at]) >= 0) {
        tokens++;
        at = at + 1 < size ? at + 1 : 0;
    }
    return (double)tokens;
}

static i64 needed(const Replica *p, const Rank *r, i64 tokens) {
    return p->reserve == BY_REQUEST || !tokens ? 0 : new_blocks(p, r, tokens);
}

static void add_decoding(Replica *p, Rank *r, i64 request, i64 context, i64 remaining) {
    const Log *log = p->log;
    i64 base = context - p->clock_tokens, end = p->clock_tokens + remaining;
    if (r->count >= r->capacity) {
        i64 room = r->capacity;
        r->members = more(r->members, &room, r->count + 1, sizeof(i64));
        room = r->capacity;
        r->bases = more(r->bases, &room, r->count + 1, sizeof(i64));
        r->capacity = room;
    }
    log->base[request] = base;
    log->end_at[request] = end;
    log->decodes[request] = 1;
    log->place[request] = (int32_t)r->count;
    r->members[r->count] = request;
    r->bases[r->count] = base;
    push_end(p, (End){end, r->index, request});
    if (!r->count) r->longest = r->shortest = base;
    else if (base > r->longest) r->longest = base;
    else if (base < r->shortest) r->shortest = base;
    r->count++;
    r->sum_base += base;
    i64 phase = mod(-base, p->block_size);
    r->phases[phase]++;
    p->together[phase]++;
    p->count++;
    r->is_changed = p->any_changed = 1;
}

/* sequences do not gain the next token of the clock */
static void postpone(Replica *p, Rank *r) {
    i64 size = p->block_size, last = r->phases[size - 1];
    for (i64 i = 0; i < r->count; i++) {
        i64 request = r->members[i];
        r->bases[i]--;
        p->log->base[request]--;
        push_end(p, (End){++p->log->end_at[request], r->index, request});
    }
    r->sum_base -= r->count;
    r->longest--;
    r->shortest--;
    for (i64 i = 0; i < size; i++) p->together[i] += (i ? r->phases[i - 1] : last) - r->phases[i];
    memmove(r->phases + 1, r->phases, (size_t)(size - 1) * sizeof(i64));
    r->phases[0] = last;
}

static i64 remove_decoding(Replica *p, Rank *r, i64 request) {
    const Log *log = p->log;
    i64 base = log->base[request], at = log->place[request], last = --r->count;
    log->end_at[request] = -1;
    log->decodes[request] = 0;
    r->members[at] = r->members[last];
    r->bases[at] = r->bases[last];
    log->place[r->members[at]] = (int32_t)at;
    r->sum_base -= base;
    i64 phase = mod(-base, p->block_size);
    r->phases[phase]--;
    p->together[phase]--;
    p->count--;
    r->is_changed = p->any_changed = 1;
    if (r->count && (base == r->longest || base == r->shortest)) {
        r->longest = r->shortest = r->bases[0];
        for (i64 i = 1; i < r->count; i++) {
            r->longest = most(r->longest, r->bases[i]);
            r->shortest = least(r->shortest, r->bases[i]);
        }
    }
    return base + p->clock_tokens;
}

static void link_run(const Log *log, Rank *r, i64 request) {
    log->run_before[request] = (int32_t)r->last_run;
    log->run_after[request] = -1;
    if (r->last_run >= 0) log->run_after[r->last_run] = (int32_t)request;
    r->last_run = request;
    r->running++;
}

static void unlink_run(const Log *log, Rank *r, i64 request) {
    int32_t before = log->run_before[request], after = log->run_after[request];
    if (before >= 0) log->run_after[before] = after;
    if (after >= 0) log->run_before[after] = before;
    else r->last_run = before;
    r->running--;
}

static void link_fill(const Log *log, Rank *r, i64 request, i64 done) {
    log->fills[request] = 1;
    log->done[request] = done;
    log->fill_before[request] = (int32_t)r->last_fill;
    log->fill_after[request] = -1;
    if (r->last_fill >= 0) log->fill_after[r->last_fill] = (int32_t)request;
    else r->first_fill = request;
    r->last_fill = request;
    r->filling++;
}

static void unlink_fill(const Log *log, Rank *r, i64 request) {
    int32_t before = log->fill_before[request], after = log->fill_after[request];
    log->fills[request] = 0;
    if (before >= 0) log->fill_after[before] = after;
    else r->first_fill = after;
    if (after >= 0) log->fill_before[after] = before;
    else r->last_fill = before;
    r->filling--;
}

static void queue_room(Rank *r) {
    if (r->queued < r->room) return;
    i64 *old = r->waiting, *wide = malloc((size_t)(r->room ? 2 * r->room : 16) * sizeof(i64));
    for (i64 i = 0; i < r->queued; i++) wide[i] = old[(r->first + i) % r->room];
    free(old);
    r->waiting = wide;
    r->first = 0;
    r->room = r->room ? 2 * r->room : 16;
}

/* Whether one request is more urgent than another; of equal ones that which came first. */
static int is_before(const Log *log, i64 a, i64 b) {
    if (log->priority[a] != log->priority[b]) return log->priority[a] < log->priority[b];
    return log->engine_s[a] != log->engine_s[b] ? log->engine_s[a] < log->engine_s[b] : a < b;
}

static void queue_ordered(const Log *log, Rank *r, i64 request) {
    queue_room(r);
    i64 i = r->queued++, *heap = r->waiting;
    for (; i && is_before(log, request, heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = request;
}

static void queue_back(const Replica *p, Rank *r, i64 request) {
    if (p->by_priority) {
        queue_ordered(p->log, r, request);
        r->stuck = 0;
        return;
    }
    queue_room(r);
    r->waiting[(r->first + r->queued++) % r->room] = request;
}

static void queue_front(const Replica *p, Rank *r, i64 request) {
    if (p->by_priority) {
        queue_ordered(p->log, r, request);
        return;
    }
    queue_room(r);
    r->first = (r->first + r->room - 1) % r->room;
    r->waiting[r->first] = request;
    r->queued++;
}

static i64 queue_pop(const Replica *p, Rank *r) {
    i64 request = r->waiting[r->first];
    if (p->by_priority) {
        i64 *heap = r->waiting, last = heap[--r->queued], i = 0;
        for (;;) {
            i64 child = 2 * i + 1;
            if (child >= r->queued) break;
            if (child + 1 < r->queued && is_before(p->log, heap[child + 1], heap[child])) child++;
            if (!is_before(p->log, heap[child], last)) break;
            heap[i] = heap[child];
            i = child;
        }
        heap[i] = last;
        return request;
    }
    r->first = (r->first + 1) % r->room;
    r->queued--;
    return request;
}

static void leave_rank(Replica *p, Rank *r, i64 request) {
    i64 blocks;
    if (p->log->decodes[request]) {
        i64 context = remove_decoding(p, r, request);
        blocks = p->reserve == BY_REQUEST ? p->log->held[request] : blocks_of(p, context);
    } else {
        unlink_fill(p->log, r, request);
        blocks = p->log->held[request];
    }
    take(p, r, -blocks);
    r->stuck = 0;
    unlink_run(p->log, r, request);
}

static i64 preempt(Replica *p, Rank *r) {
    const Log *log = p->log;
    i64 victim = r->last_run;
    for (i64 one = victim; p->by_priority && one >= 0; one = log->run_before[one])
        if (is_before(log, victim, one)) victim = one;
    if (log->decodes[victim]) {
        log->generated[victim] = log->output_len[victim] - (log->end_at[victim] - p->clock_tokens);
        log->last_s[victim] = p->now;
    }
    leave_rank(p, r, victim);
    log->preempted[victim]++;
    queue_front(p, r, victim);
    return victim;
}

static int make_room(Replica *p, Rank *r, i64 tokens) {
    int found = 0;
    while (r->count && needed(p, r, tokens) > free_blocks(p, r)) {
        preempt(p, r);
        r->preemptions++;
        found = 1;
    }
    return found;
}

static i64 target_of(const Log *log, i64 request) { return log->input_len[request] + log->generated[request]; }

typedef struct { i64 need, holding, done, take; } Entry;

static Entry entry_of(const Replica *p, i64 request, i64 budget) {
    const Log *log = p->log;
    i64 target = target_of(log, request), done = 0;
    if (log->ready[request]) done = target;
    else if (log->computed && log->computed[request]) done = least(log->computed[request], target - 1);
    i64 chunk = p->chunked ? least(target - done, budget) : target - done, holding = done + chunk;
    if (p->reserve == BY_PROMPT) holding = target;
    if (p->reserve == BY_REQUEST) holding = log->input_len[request] + log->output_len[request] - 1;
    return (Entry){blocks_of(p, holding), holding, done, chunk};
}

static void start(Replica *p, Rank *r, i64 request, Entry entry) {
    const Log *log = p->log;
    queue_pop(p, r);
    link_run(p->log, r, request);
    take(p, r, entry.need);
    log->held[request] = entry.need;
    link_fill(p->log, r, request, entry.done);
    if (isnan(log->admitted_s[request])) log->admitted_s[request] = p->now;
}

static int prompt_done(Replica *p, Rank *r, i64 request) {
    const Log *log = p->log;
    i64 generated = log->generated[request] + 1, target = log->input_len[request] + generated - 1;
    log->generated[request] = 0;
    if (log->ready[request]) {
        log->ready[request] = 0;
        --*log->num_ready;
    }
    if (generated >= log->output_len[request]) {
        leave_rank(p, r, request);
        return 1;
    }
    unlink_fill(p->log, r, request);
    add_decoding(p, r, request, target, log->output_len[request] - generated);
    return 0;
}

static void add_chunk(Replica *p, i64 rank, i64 request, i64 chunk, i64 done) {
    p->chunks = more(p->chunks, &p->chunks_room, p->num_chunks + 1, sizeof(Chunk));
    p->chunks[p->num_chunks++] = (Chunk){rank, request, chunk, done};
}

/* Drop the chunks of requests that were preempted. */
static void drop_chunks(Replica *p, i64 before) {
    i64 kept = before;
    for (i64 i = before; i < p->num_chunks; i++)
        if (p->log->fills[p->chunks[i].request]) p->chunks[kept++] = p->chunks[i];
    p->num_chunks = kept;
}

/* Less urgent running requests leave for one that waits, where that makes room for it. */
static void make_way(Replica *p, Rank *r, i64 request, i64 need, i64 before) {
    const Log *log = p->log;
    i64 blocks = free_blocks(p, r), less = 0;
    if (r->running < p->max_num_seqs && need <= blocks) return;
    for (i64 one = r->last_run; one >= 0; one = log->run_before[one]) {
        if (log->priority[one] <= log->priority[request]) continue;
        less++;
        int grows = log->decodes[one] && p->reserve != BY_REQUEST;
        blocks += grows ? blocks_of(p, log->base[one] + p->clock_tokens) : log->held[one];
    }
    if (!less || need > blocks) return;
    while (r->running >= p->max_num_seqs || need > free_blocks(p, r)) preempt(p, r);
    drop_chunks(p, before);
}

static void take_prompts(Replica *p, Rank *r, i64 budget, int admit) {
    const Log *log = p->log;
    i64 before = p->num_chunks, count = 0;
    p->fill_now = more(p->fill_now, &p->fill_room, r->filling, sizeof(i64));
    for (i64 request = r->first_fill; request >= 0; request = log->fill_after[request]) p->fill_now[count++] = request;
    for (i64 i = 0; i < count && budget > 0; i++) {
        i64 request = p->fill_now[i];
        if (!log->fills[request]) continue;
        i64 done = log->done[request], target = target_of(log, request);
        i64 chunk = p->chunked ? least(target - done, budget) : target - done;
        if (p->reserve == BY_CHUNK) {
            i64 need = blocks_of(p, done + chunk) - log->held[request];
            while (need > free_blocks(p, r)) {
                admit = 0;
                r->preemptions++;
                if (preempt(p, r) == request) break;
            }
            if (!log->fills[request]) break;
            take(p, r, need);
            log->held[request] += need;
        }
        add_chunk(p, r->index, request, chunk, done);
        budget -= chunk;
    }
    if (p->by_priority) drop_chunks(p, before);
    if (!admit || !r->queued) return;
    while (r->queued && budget > 0 && (p->for_urgent || r->running < p->max_num_seqs)) {
        i64 request = r->waiting[r->first];
        Entry entry = entry_of(p, request, budget);
        int first = p->num_chunks == before;
        if (entry.take > budget && (!first || target_of(log, request) <= p->max_batched_tokens)) break;
        if (p->for_urgent) make_way(p, r, request, entry.need, before);
        if (entry.need > free_blocks(p, r) || r->running >= p->max_num_seqs) break;
        start(p, r, request, entry);
        add_chunk(p, r->index, request, entry.take, entry.done);
        budget -= entry.take;
    }
    r->stuck = p->num_chunks == before;
}

/* statistics */

static void gap_of(Replica *p, double seconds, i64 count) {
    i64 at = seconds > 0 ? (i64)(log(seconds) * 200.0) : -10000;
    p->gaps[most(least(at + GAP_ZERO, GAPS - 1), 0)] += count;
}

static void late(Replica *p, Rank *r, double seconds) {
    p->any_late = r->is_late = 1;
    r->waited_s += seconds;
}

static void first_gaps(Replica *p, i64 sequences, double seconds, double end) {
    if (p->any_late) {
        p->any_late = 0;
        for (i64 i = 0; i < p->num_ranks; i++) {
            Rank *r = p->ranks + i;
            if (!r->is_late) continue;
            if (r->pauses) {
                p->any_late = 1;
                continue;
            }
            i64 count = r->count;
            sequences -= count;
            for (i64 j = 0; j < r->num_joined; j++) {
                i64 joined = least(r->joined[j].count, count);
                if (joined) gap_of(p, end - r->joined[j].time_s, joined);
                count -= joined;
            }
            if (count) gap_of(p, seconds + r->waited_s, count);
            r->waited_s = 0.0;
            r->is_late = r->num_joined = 0;
        }
    }
    if (sequences) gap_of(p, seconds, sequences);
}

static void account(Replica *p, double seconds, i64 steps, i64 sequences, double used) {
    p->steps += steps;
    p->passes++;
    p->busy_s += seconds;
    p->sequence_s += (double)sequences * seconds;
    p->used_s += used * seconds;
}

static void sample(Replica *p) {
    double *row = p->samples + 4 * p->num_samples++;
    row[0] = p->now;
    row[1] = (double)p->count;
    row[2] = (double)(p->present - p->count);
    row[3] = (double)(p->used_blocks + p->unsettled);
    if (p->num_samples >= SAMPLES) {
        for (i64 i = 0; i < SAMPLES / 2; i++) memcpy(p->samples + 4 * i, p->samples + 8 * i, 4 * sizeof(double));
        p->num_samples = SAMPLES / 2;
        p->sample_s = 2.0 * (p->samples[4 * (SAMPLES / 2 - 1)] - p->samples[0]) / SAMPLES;
    }
    p->next_sample = p->now + p->sample_s;
}

/* arrivals */

static int before_arrival(const Arrival *a, const Arrival *b) {
    return a->time_s != b->time_s ? a->time_s < b->time_s : a->serial < b->serial;
}

static void submit(Replica *p, i64 request, double time_s) {
    i64 last = p->queue_first + p->queue_count - 1;
    if (!p->num_late && (!p->queue_count || time_s >= p->queue[last].time_s)) {
        if (p->queue_first + p->queue_count >= p->queue_room && p->queue_first > p->queue_count) {
            memmove(p->queue, p->queue + p->queue_first, (size_t)p->queue_count * sizeof(Arrival));
            p->queue_first = 0;
        }
        p->queue = more(p->queue, &p->queue_room, p->queue_first + p->queue_count + 1, sizeof(Arrival));
        p->queue[p->queue_first + p->queue_count++] = (Arrival){time_s, 0, request};
        return;
    }
    Arrival one = {time_s, ++p->serial, request};
    p->late = more(p->late, &p->late_room, p->num_late + 1, sizeof(Arrival));
    i64 i = p->num_late++;
    for (; i && before_arrival(&one, p->late + (i - 1) / 2); i = (i - 1) / 2) p->late[i] = p->late[(i - 1) / 2];
    p->late[i] = one;
}

static double next_arrival(const Replica *p) {
    double first = p->queue_count ? p->queue[p->queue_first].time_s : INFINITY;
    return p->num_late ? fmin(first, p->late[0].time_s) : first;
}

static Arrival pop_arrival(Replica *p) {
    if (p->num_late && (!p->queue_count || p->late[0].time_s < p->queue[p->queue_first].time_s)) {
        Arrival first = p->late[0], last = p->late[--p->num_late];
        i64 i = 0;
        for (;;) {
            i64 child = 2 * i + 1;
            if (child >= p->num_late) break;
            if (child + 1 < p->num_late && before_arrival(p->late + child + 1, p->late + child)) child++;
            if (!before_arrival(p->late + child, &last)) break;
            p->late[i] = p->late[child];
            i = child;
        }
        p->late[i] = last;
        return first;
    }
    p->queue_count--;
    return p->queue[p->queue_first++];
}

static i64 least_loaded(const Replica *p) {
    i64 found = 0, fewest = NEVER, loads = p->loads[0], ties = 0;
    for (i64 i = 1; i < p->num_ranks; i++) loads = least(loads, p->loads[i]);
    for (i64 i = 0; i < p->num_ranks; i++)
        if (p->loads[i] == loads && !ties++) found = i;
    if (ties == 1) return found;
    for (i64 i = 0; i < p->num_ranks; i++) {
        if (p->loads[i] != loads) continue;
        i64 blocks = rank_blocks(p, p->ranks + i);
        if (blocks < fewest) {
            found = i;
            fewest = blocks;
        }
    }
    return found;
}

static void take_arrivals(Replica *p) {
    while (next_arrival(p) <= p->now) {
        Arrival one = pop_arrival(p);
        if (isnan(p->log->engine_s[one.request])) p->log->engine_s[one.request] = one.time_s;
        i64 index = p->num_ranks > 1 ? least_loaded(p) : 0;
        queue_back(p, p->ranks + index, one.request);
        p->loads[index]++;
        p->present++;
    }
}

/* the end of a pass */

static void leave(Replica *p, const Rank *r) {
    p->loads[r->index]--;
    p->present--;
}

static void tell(Replica *p, i64 request, double end) {
    i64 room = p->done_room;
    p->done = more(p->done, &room, p->num_done + 1, sizeof(i64));
    p->done_s = more(p->done_s, &p->done_room, p->num_done + 1, sizeof(double));
    p->done[p->num_done] = request;
    p->done_s[p->num_done++] = end;
}

static void finish(Replica *p, i64 request, double end) {
    p->log->finish_s[request] = end;
    p->finished++;
    if (p->tells) tell(p, request, end);
}

static void end_of(Replica *p, Rank *r, i64 request, double end) {
    leave_rank(p, r, request);
    leave(p, r);
    finish(p, request, end);
}

static void advance_clock(Replica *p, i64 steps, i64 pausing) {
    i64 grown = tokens_of(p, steps);
    if (grown && p->reserve != BY_REQUEST)
        p->unsettled += blocks_between(p->together, p->block_size, p->count, p->clock_tokens, grown);
    for (i64 i = 0; pausing && i < p->num_ranks; i++) {
        Rank *r = p->ranks + i;
        if (!r->pauses) continue;
        settle(p, r);
        if (p->reserve != BY_REQUEST) p->unsettled -= new_blocks(p, r, 1);
        postpone(p, r);
        r->settled = p->clock_tokens + 1;
    }
    p->clock_tokens += grown;
    p->clock_steps += steps;
    find_ended(p);
}

static void join(Replica *p, Rank *r) {
    const Log *log = p->log;
    while (r->queued && r->running < p->max_num_seqs && log->ready[r->waiting[r->first]]) {
        i64 request = r->waiting[r->first];
        Entry entry = entry_of(p, request, p->max_batched_tokens);
        if (entry.need > free_blocks(p, r)) break;
        start(p, r, request, entry);
        if (prompt_done(p, r, request)) {
            leave(p, r);
            finish(p, request, p->now);
        }
    }
}

static void refresh(Replica *p) {
    if (!p->any_changed) return;
    for (i64 i = 0; i < p->num_ranks; i++) {
        Rank *r = p->ranks + i;
        if (!r->is_changed) continue;
        if (r->settled != p->clock_tokens) settle(p, r);
        p->rooms[i] = (double)p->clock_tokens + room_of(p, r);
        r->is_changed = 0;
    }
    p->any_changed = 0;
    p->num_slowest = 0;
}

static double least_room(const Replica *p) {
    double room = p->rooms[0];
    for (i64 i = 1; i < p->num_ranks; i++) room = fmin(room, p->rooms[i]);
    return room;
}

/* decode steps */

static double kv_of(const Replica *p, const Rank *r) { return (double)(r->sum_base + r->count * p->clock_tokens); }

static int is_straight(const Replica *p, const Rank *r) {
    return (double)(r->shortest + p->clock_tokens) >= p->clock->straight_from;
}

static double step_s(const Replica *p, const Rank *r, double group, double more_tokens) {
    double n = (double)r->count, clock = (double)p->clock_tokens;
    if (!is_straight(p, r)) return bent(p->clock, r, clock, more_tokens, group);
    double kv = kv_of(p, r) + n * more_tokens, longest = (double)r->longest + clock + more_tokens;
    return straight(p->clock, r->count, kv, longest, group);
}

/* Ranks that no other exceeds in sequences, cached tokens and longest context: from `order` to `found`. */
static i64 may_be_slowest(Replica *p, i64 *order, i64 count, i64 *found) {
    for (i64 i = 1; i < count; i++) { /* most cached tokens first; equal ones as they were */
        i64 one = order[i], j = i;
        double kv = kv_of(p, p->ranks + one);
        for (; j && kv_of(p, p->ranks + order[j - 1]) < kv; j--) order[j] = order[j - 1];
        order[j] = one;
    }
    i64 number = 0;
    for (i64 i = 0; i < count; i++) {
        const Rank *r = p->ranks + order[i];
        int exceeded = !r->count;
        for (i64 j = 0; j < number && !exceeded; j++) {
            const Rank *other = p->ranks + found[j];
            exceeded = r->count <= other->count && r->longest <= other->longest;
        }
        if (!exceeded) found[number++] = order[i];
    }
    return number;
}

static void find_slowest(Replica *p) {
    i64 size = p->group_size, span = size > 1 ? size : p->num_ranks, verified = p->clock->verified;
    p->num_slowest = 0;
    if (p->num_ranks == 1) {
        p->slowest[0] = 0;
        p->slowest_tokens[0] = (double)(p->ranks[0].count * verified);
        p->num_slowest = 1;
        return;
    }
    for (i64 first = 0; first < p->num_ranks; first += span) {
        i64 count = 0, tokens = 0, all = 1;
        for (i64 i = first; i < first + span; i++) {
            const Rank *r = p->ranks + i;
            if (!r->count) continue;
            p->order[count++] = i;
            tokens += r->count * verified;
            all = all && is_straight(p, r);
        }
        i64 *found = p->slowest + p->num_slowest, number = count;
        if (!p->clock->straight_from || all) number = may_be_slowest(p, p->order, count, found);
        else memcpy(found, p->order, (size_t)count * sizeof(i64));
        for (i64 i = 0; i < number; i++)
            p->slowest_tokens[p->num_slowest + i] =
                (double)(size > 1 ? tokens : p->ranks[found[i]].count * verified);
        p->num_slowest += number;
    }
}

/* Tokens by which contexts may grow while a step grows linearly; negative where it does not. */
static double to_bend(const Replica *p, const Rank *r, double group) {
    const Clock *c = p->clock;
    if (!c->bends_known || c->hosts[r->count] || !is_straight(p, r)) return -1.0;
    double n = (double)r->count, kv = kv_of(p, r), nearest = INFINITY;
    for (int d = 0; d < (c->draft ? 2 : 1); d++) {
        const Table *t = d ? c->draft : c->table;
        double tokens = d ? n : n * (double)c->verified, of_group = d ? group / (double)c->verified : group;
        for (i64 i = 0; i < t->num_bends; i++) {
            const double *b = t->bends + 5 * i;
            double bend = -(b[0] + b[1] * tokens + b[2] * of_group + b[3] * n) / b[4];
            if (bend > 0.0 && bend > kv) nearest = fmin(nearest, bend);
        }
    }
    return (nearest - kv) / n;
}

static double rounded(double seconds, double interval) {
    return interval ? ceil(seconds / interval - 1e-9) * interval : seconds;
}

static i64 steps_before(double room_s, double first, double slope, i64 limit) {
    double half = first - 0.5 * slope, wanted;
    if (slope > 0) wanted = ceil(2.0 * room_s / (half + sqrt(half * half + 2.0 * slope * room_s)));
    else wanted = first > 0 ? ceil(room_s / first) : (double)limit;
    i64 found = wanted < (double)limit ? most((i64)wanted, 1) : limit;
    while (found > 1 && (double)(found - 1) * half + 0.5 * slope * (double)((found - 1) * (found - 1)) >= room_s) found--;
    while (found < limit && (double)found * half + 0.5 * slope * (double)(found * found) < room_s) found++;
    return found;
}

typedef struct { i64 steps; double seconds, first_s, slope_s; } Pace;

static Pace pace(Replica *p, i64 limit, double room_s) {
    i64 steps = limit, number = p->num_slowest, linear = 1, slowest = 0;
    double interval = p->interval_s, rate = p->clock->tokens_per_step, nearest = INFINITY;
    double *firsts = p->paces, *ahead = firsts + p->num_ranks, *slopes = ahead + p->num_ranks, highest = -INFINITY;
    p->num_durations = 0;
    for (i64 i = 0; i < number; i++) {
        firsts[i] = step_s(p, p->ranks + p->slowest[i], p->slowest_tokens[i], 0.0);
        highest = fmax(highest, firsts[i]);
    }
    double first = rounded(highest, interval);
    if (first >= room_s) steps = 1;
    else if (first > 0 && room_s < (double)steps * first) steps = least(steps, (i64)ceil(room_s / first));
    if (steps == 1) return (Pace){1, first, first, 0.0};
    for (i64 i = 0; i < number; i++) {
        ahead[i] = to_bend(p, p->ranks + p->slowest[i], p->slowest_tokens[i]);
        if (ahead[i] < 0.0) linear = 0;
        else nearest = fmin(nearest, ahead[i]);
    }
    if (nearest < INFINITY || linear) steps = least(steps, steps_within(p, (i64)fmin(nearest, 1e9)) + 1);
    if (!linear) steps = least(steps, AT_ONCE);
    i64 grown = tokens_of(p, steps - 1);
    double latest = -INFINITY;
    for (i64 i = 0; i < number; i++) {
        slopes[i] = 0.0;
        if (ahead[i] < 0.0) continue;
        if (grown)
            slopes[i] =
                (step_s(p, p->ranks + p->slowest[i], p->slowest_tokens[i], (double)grown) - firsts[i]) / (double)grown;
        double last = firsts[i] + slopes[i] * (double)(steps - 1);
        if (last > latest) {
            latest = last;
            slowest = i;
        }
    }
    if (linear && rate == 1.0 && !interval && firsts[slowest] >= first) {
        double slope = slopes[slowest];
        if (steps > 1 && room_s < (double)steps * (first + slope * (double)(steps - 1)))
            steps = steps_before(room_s, first, slope, steps);
        double all = (double)steps * first + slope * (0.5 * (double)steps * (double)(steps - 1));
        return (Pace){steps, all, first, slope};
    }
    i64 count = least(steps, AT_ONCE);
    double end = 0.0;
    for (i64 k = 0; k < count; k++) {
        double gained = rate == 1.0 ? (double)k : (double)(token_clock(p, p->clock_steps + k) - p->clock_tokens);
        double longest = 0.0;
        for (i64 i = 0; i < number; i++) {
            double each = firsts[i] + slopes[i] * gained;
            if (ahead[i] < 0.0 && k) each = step_s(p, p->ranks + p->slowest[i], p->slowest_tokens[i], gained);
            longest = fmax(longest, each);
        }
        p->durations[k] = rounded(longest, interval);
        end += p->durations[k];
        p->num_durations = k + 1;
        if (end >= room_s) break;
    }
    return (Pace){p->num_durations, end, p->durations[0], 0.0};
}

/* passes of decoding before prompts may run, unless something happens meanwhile */
static int has_prompts(const Replica *p, const Rank *r) {
    return r->filling || (r->queued && !r->stuck && r->running < p->max_num_seqs);
}

static i64 passes_held(Replica *p) {
    if (!p->aligned || !p->count) return 0;
    if (p->every) return mod(-p->steps, p->every);
    if (p->decodes_after) return p->owed_passes;
    i64 some = 0, decode = 1;
    for (i64 i = 0; i < p->num_ranks; i++) {
        some += has_prompts(p, p->ranks + i);
        decode = decode && p->ranks[i].count;
    }
    if (some == p->num_ranks) {
        p->held_passes = 0;
        if (decode && p->gathered_passes < p->all_passes) return p->all_passes - p->gathered_passes;
        if (decode) p->gathered_passes = 0;
        return 0;
    }
    if (!some) return 0;
    if (p->held_passes >= p->some_passes || (p->idle_releases && !decode)) {
        p->held_passes = 0;
        return 0;
    }
    return p->some_passes - p->held_passes;
}

static void count_held(Replica *p, i64 steps, i64 held) {
    if (!p->aligned) return;
    p->owed_passes = most(p->owed_passes - steps, 0);
    i64 all = held;
    for (i64 i = 0; i < p->num_ranks && all; i++) all = has_prompts(p, p->ranks + i);
    if (all) p->gathered_passes += steps;
    else if (held) p->held_passes += steps;
    else if (p->counts_always) p->held_passes = (p->held_passes + steps) % (p->some_passes + 1);
}

static int decode(Replica *p, double until, int alone, i64 held) {
    if (!p->count) return STUCK;
    refresh(p);
    i64 limit = 1;
    if (!alone) {
        limit = most(least(held ? held : AHEAD, steps_to_end(p)), 1);
        double room = least_room(p) - (double)p->clock_tokens;
        if (room < (double)tokens_of(p, limit)) limit = most(steps_within(p, (i64)room), 1);
    }
    if (p->num_ranks > 1 || !p->ranks[0].queued || p->by_priority) until = fmin(until, next_arrival(p));
    if (!p->num_slowest) find_slowest(p);
    Pace next = pace(p, limit, until - p->now);
    i64 sequences = p->count;
    double begin = p->now, end = begin + next.seconds;
    p->now = end;
    first_gaps(p, sequences, next.first_s, begin + next.first_s);
    if (next.steps > 1) {
        if (!p->num_durations) gap_of(p, next.first_s + 0.5 * next.slope_s * (double)next.steps, sequences * (next.steps - 1));
        for (i64 k = 1; k < p->num_durations; k++) gap_of(p, p->durations[k], sequences);
    }
    count_held(p, next.steps, held);
    double used = (double)(p->used_blocks + p->unsettled);
    i64 before = p->unsettled;
    advance_clock(p, next.steps, 0);
    account(p, next.seconds, next.steps, sequences, used + 0.5 * (double)(p->unsettled - before));
    for (i64 i = 0; i < p->num_ended; i++) {
        Rank *r = p->ranks + p->ended[i].rank;
        settle(p, r);
        end_of(p, r, p->ended[i].request, end);
    }
    return DONE;
}

/* one pass with prompts */

static double group_s(Replica *p, i64 first_rank, i64 first, i64 end, int decodes) {
    const Clock *c = p->clock;
    i64 size = p->group_size, decoding = 0, new = 0, with = 0, others = 0, beside = 0;
    double seconds = 0.0;
    for (i64 i = first_rank; i < first_rank + size; i++)
        if (!p->ranks[i].pauses) decoding += p->ranks[i].count * c->verified;
    for (i64 i = first_rank, j = first; (decodes || p->beside) && i < first_rank + size; i++) {
        while (j < end && p->chunks[j].rank < i) j++;
        beside = beside || ((j >= end || p->chunks[j].rank != i) && p->ranks[i].count);
    }
    for (i64 i = first; i < end; i++) new += p->chunks[i].take;
    double group = (double)(decoding + new);
    i64 next = first_rank;
    for (i64 i = first; i < end; with++) {
        i64 index = p->chunks[i].rank, j = i;
        while (j < end && p->chunks[j].rank == index) j++;
        for (; next < index; next++) p->order[others++] = next;
        next = index + 1;
        const Rank *r = p->ranks + index;
        i64 n = decodes ? r->count : 0;
        double kv = n ? kv_of(p, r) : 0.0, longest = n ? (double)(r->longest + p->clock_tokens) : 0.0;
        double alone = n ? step_s(p, r, (double)decoding, 0.0) : 0.0;
        seconds = fmax(seconds, prompts_s(c, n, kv, longest, p->chunks + i, j - i, group, alone, beside != 0));
        i = j;
    }
    if (!(decodes || p->beside) || with >= size || !decoding) return seconds;
    for (; next < first_rank + size; next++) p->order[others++] = next;
    i64 number = may_be_slowest(p, p->order, others, p->found);
    for (i64 i = 0; i < number; i++) {
        const Rank *r = p->ranks + p->found[i];
        double longest = (double)(r->longest + p->clock_tokens);
        seconds = fmax(seconds, prompts_s(c, r->count, kv_of(p, r), longest, NULL, 0, group, 0.0, 0));
    }
    return seconds;
}

static void run_pass(Replica *p, int decodes) {
    const Log *log = p->log;
    i64 size = p->group_size, at = 0, with = 0;
    double seconds = 0.0;
    refresh(p);
    i64 pausing = !decodes, sequences = p->count;
    if (pausing)
        for (i64 i = 0; i < p->num_ranks; i++) p->ranks[i].pauses = !p->beside;
    if (pausing && p->beside)
        for (i64 i = 0; i < p->num_chunks; i++) p->ranks[p->chunks[i].rank].pauses = 1;
    for (i64 first = 0; first < p->num_ranks; first += size) {
        i64 begin = at;
        for (; at < p->num_chunks && p->chunks[at].rank < first + size; at++)
            with += at == begin || p->chunks[at].rank != p->chunks[at - 1].rank;
        seconds = fmax(seconds, group_s(p, first, begin, at, decodes));
    }
    seconds = rounded(seconds, p->interval_s);
    double end = p->now + seconds;
    account(p, seconds, 1, p->count, (double)(p->used_blocks + p->unsettled));
    p->now = end;
    for (i64 i = 0; i < p->num_ranks && pausing; i++) sequences -= p->ranks[i].pauses ? p->ranks[i].count : 0;
    if (sequences) first_gaps(p, sequences, seconds, end);
    for (i64 i = 0; i < p->num_ranks && pausing; i++)
        if (p->ranks[i].pauses) late(p, p->ranks + i, seconds);
    if (p->num_ranks > 1) {
        p->prompt_pass_s += seconds;
        p->prompt_rank_s += seconds * ((double)with / (double)p->num_ranks);
    }
    p->num_ended = 0;
    if (sequences) advance_clock(p, 1, pausing);
    for (i64 i = 0; i < p->num_ranks && pausing; i++) p->ranks[i].pauses = 0;
    at = 0;
    for (i64 index = 0; index < p->num_ranks; index++) {
        Rank *r = p->ranks + index;
        int some = at < p->num_chunks && p->chunks[at].rank == index;
        for (i64 i = 0; i < p->num_ended && !some; i++) some = p->ended[i].rank == index;
        if (!some) continue;
        settle(p, r);
        for (i64 i = 0; i < p->num_ended; i++)
            if (p->ended[i].rank == index) end_of(p, r, p->ended[i].request, end);
        i64 joined = 0;
        for (; at < p->num_chunks && p->chunks[at].rank == index; at++) {
            Chunk chunk = p->chunks[at];
            i64 request = chunk.request, done = chunk.done + chunk.take;
            if (!log->fills[request]) continue;
            if (done < target_of(log, request)) {
                log->done[request] = done;
                continue;
            }
            if (isnan(log->first_s[request])) log->first_s[request] = end;
            else if (!isnan(log->last_s[request])) {
                gap_of(p, end - log->last_s[request], 1);
                log->last_s[request] = NAN;
            }
            if (p->hands_over) {
                leave_rank(p, r, request);
                leave(p, r);
                tell(p, request, end);
            } else if (prompt_done(p, r, request)) {
                leave(p, r);
                finish(p, request, end);
            } else joined++;
        }
        if (joined && !decodes) {
            r->joined = more(r->joined, &r->joined_room, r->num_joined + 1, sizeof(struct Joined));
            r->joined[r->num_joined++] = (struct Joined){end, joined};
        }
    }
    p->owed_passes = p->decodes_after;
}

static int mixed_or_decode(Replica *p, double until) {
    i64 grown = p->count ? tokens_of(p, 1) : 0, finished = p->finished;
    refresh(p);
    int lost = 0;
    i64 held = passes_held(p);
    double fits = (double)(p->clock_tokens + grown);
    p->num_chunks = 0;
    if (p->present > p->count || least_room(p) < fits) {
        for (i64 i = 0; i < p->num_ranks; i++) {
            Rank *r = p->ranks + i;
            if (!(r->filling || (r->queued && !r->stuck) || p->rooms[i] < fits)) continue;
            settle(p, r);
            if (*p->log->num_ready) join(p, r);
            if (r->count) {
                grown = tokens_of(p, 1);
                if (r->count * grown > free_blocks(p, r)) lost = make_room(p, r, grown) || lost;
            }
            if ((r->filling || r->queued) && !held) {
                i64 need = needed(p, r, grown), preempted = r->preemptions;
                take(p, r, need);
                take_prompts(p, r, p->max_batched_tokens - r->count * p->clock->verified, !lost);
                take(p, r, -need);
                lost = lost || r->preemptions != preempted;
            }
        }
    }
    if (p->num_chunks) run_pass(p, 1);
    else if (p->count || p->finished == finished) return decode(p, until, lost, held);
    return DONE;
}

static int prompts_or_decode(Replica *p, double until) {
    int batch = p->passes_as == BATCH, lost = 0, yielding = 0;
    i64 finished = p->finished, held = passes_held(p);
    p->num_chunks = 0;
    if (batch || p->present > p->count) {
        for (i64 i = 0; i < p->num_ranks; i++) {
            Rank *r = p->ranks + i;
            if (!(r->queued || r->filling || batch)) continue;
            if (held && (!r->filling || p->holds_chunks)) continue;
            if (*p->log->num_ready && r->queued) {
                settle(p, r);
                join(p, r);
            }
            if (batch && !r->running) r->is_open = 1;
            int held_back = r->yields && r->count > 0;
            yielding = yielding || held_back;
            if (r->filling || (r->queued && !r->stuck)) {
                settle(p, r);
                i64 preempted = r->preemptions;
                take_prompts(p, r, p->max_batched_tokens, (r->is_open || !batch) && !held_back && !held);
                if (r->preemptions != preempted) lost = 1, r->yields = p->any_yields = 1;
            }
        }
    }
    if (p->num_chunks && !p->beside) {
        run_pass(p, 0);
        return DONE;
    }
    if (batch)
        for (i64 i = 0; i < p->num_ranks; i++) p->ranks[i].is_open = 0;
    refresh(p);
    i64 grown = tokens_of(p, 1);
    double fits = (double)(p->clock_tokens + grown);
    if (least_room(p) < fits) {
        for (i64 i = 0; i < p->num_ranks; i++) {
            Rank *r = p->ranks + i;
            int some = 0;
            for (i64 j = 0; j < p->num_chunks && !some; j++) some = p->chunks[j].rank == i;
            if (p->rooms[i] >= fits || some) continue;
            settle(p, r);
            lost = make_room(p, r, grown) || lost;
        }
    }
    int state = DONE;
    if (p->num_chunks) run_pass(p, 0);
    else if (p->count || p->finished == finished) state = decode(p, until, lost || yielding, held);
    if (p->any_yields) {
        p->any_yields = 0;
        for (i64 i = 0; i < p->num_ranks; i++) p->ranks[i].yields = 0;
    }
    return state;
}

static double departure(const Replica *p, double time_s) {
    double interval = p->interval_s;
    return interval ? fmax(time_s, ceil(time_s / interval - 1e-9) * interval) : time_s;
}

static int advance_passes(Replica *p, double until, i64 passes) {
    i64 last = passes < NEVER ? p->passes + passes : NEVER;
    for (;;) {
        take_arrivals(p);
        if (!p->present) {
            double begin = next_arrival(p);
            if (begin >= until || begin == INFINITY) return DONE;
            p->now = fmax(p->now, begin);
            continue;
        }
        if (p->now >= until) return DONE;
        if (p->passes >= last) return MORE;
        if (p->interval_s) {
            double begin = departure(p, p->now);
            if (begin > p->now) {
                if (begin >= until) return DONE;
                for (i64 i = 0; i < p->num_ranks; i++)
                    if (p->ranks[i].count) late(p, p->ranks + i, begin - p->now);
                p->now += begin - p->now;
                continue;
            }
        }
        if (p->now >= p->next_sample) sample(p);
        int state = p->passes_as == MIXED ? mixed_or_decode(p, until) : prompts_or_decode(p, until);
        if (state) return state;
        if (p->num_done && p->tells == STOPS) return DONE;
    }
}

static void tell_next(Replica *p) {
    p->load = p->present + p->queue_count + p->num_late;
    p->queued = p->queue_count + p->num_late;
    p->held_blocks = p->used_blocks + p->unsettled;
    for (i64 i = 0; i < p->num_ranks; i++) p->queued += p->ranks[i].queued;
    if (p->present) p->next_start = departure(p, p->now);
    else {
        double begin = next_arrival(p);
        p->next_start = begin == INFINITY ? begin : departure(p, fmax(p->now, begin));
    }
}

/* what Python calls */

void begin(Replica *p) {
    i64 n = p->num_ranks;
    p->ranks = calloc((size_t)n, sizeof(Rank));
    p->loads = calloc((size_t)n, sizeof(i64));
    p->rooms = calloc((size_t)n, sizeof(double));
    p->together = calloc((size_t)p->block_size, sizeof(i64));
    p->gaps = calloc(GAPS, sizeof(i64));
    p->samples = calloc(4 * SAMPLES, sizeof(double));
    p->slowest = calloc((size_t)n, sizeof(i64));
    p->found = calloc((size_t)n, sizeof(i64));
    p->order = calloc((size_t)n, sizeof(i64));
    p->slowest_tokens = calloc((size_t)n, sizeof(double));
    p->durations = calloc(AT_ONCE, sizeof(double));
    p->paces = calloc(3 * (size_t)n, sizeof(double));
    p->beside = p->passes_as == PROMPTS_FIRST && n > 1 && p->clock->verified == 1;
    for (i64 i = 0; i < n; i++) {
        Rank *r = p->ranks + i;
        r->index = i;
        r->phases = calloc((size_t)p->block_size, sizeof(i64));
        r->last_run = r->first_fill = r->last_fill = -1;
        r->is_open = 1;
        p->rooms[i] = INFINITY;
    }
    tell_next(p);
}

void release(Replica *p) {
    for (i64 i = 0; i < p->num_ranks; i++) {
        free(p->ranks[i].members);
        free(p->ranks[i].bases);
        free(p->ranks[i].phases);
        free(p->ranks[i].waiting);
        free(p->ranks[i].joined);
    }
    void *all[] = {p->ranks, p->loads, p->rooms, p->together, p->gaps, p->samples, p->slowest, p->found, p->order,
                   p->slowest_tokens, p->durations, p->paces, p->done, p->done_s, p->ends, p->ended, p->queue,
                   p->late, p->chunks, p->fill_now};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) free(all[i]);
}

void submit_all(Replica *p, i64 count, const i64 *requests, const double *times_s) {
    for (i64 i = 0; i < count; i++) submit(p, requests[i], times_s[i]);
    tell_next(p);
}

static int go_on(Replica *p, double until, i64 passes) {
    int state = advance_passes(p, until, passes);
    tell_next(p);
    return state;
}

int advance(Replica *p, double until, i64 passes) { return go_on(p, until, passes); } /* libc has an `advance` too */

/* a fleet whose replicas come and go, as in fleet.py: requests that arrive before `until` go to those that are open,
   which are the first of all, and all run their passes that start before it */

int serve(Replica **all, i64 open, i64 number, i64 count, const i64 *requests, const double *times_s, int to_least_loaded,
          i64 *turn, i64 *placed, double until) {
    int state = DONE;
    for (i64 i = 0; i < count; i++) {
        i64 at = 0;
        if (to_least_loaded) {
            for (i64 j = 0; j < open && !state; j++) state = go_on(all[j], times_s[i], NEVER);
            if (state) return state;
            for (i64 j = 1; j < open; j++)
                if (all[j]->load < all[at]->load) at = j;
        } else at = (*turn)++ % open;
        submit(all[at], requests[i], times_s[i]);
        if (to_least_loaded) tell_next(all[at]);
        placed[i] = at;
    }
    for (i64 j = 0; j < number && !state; j++) state = go_on(all[j], until, NEVER);
    return state;
}

/* Run open replicas up to a time, and read how they stand: loads, queues, blocks, each of all of them. */
int look(Replica **all, i64 open, double time_s, i64 *found) {
    int state = DONE;
    for (i64 j = 0; j < open && !state; j++) {
        state = go_on(all[j], time_s, NEVER);
        found[j] = all[j]->load;
        found[open + j] = all[j]->queued;
        found[2 * open + j] = all[j]->held_blocks;
    }
    return state;
}

void put(Replica *p, i64 request, double time_s) {
    submit(p, request, time_s);
    tell_next(p);
}

/* pools: arrivals, handovers and passes in the order of time, as in run.py */

typedef struct { double time_s; i64 kind, serial, request; } Event; /* of equal times, arrivals at the decode pool first */

/* The fields up to `tokens_per_s` are written from Python. */
typedef struct {
    const Log *log;
    Replica **replicas;
    i64 num_front, num_replicas, least_loaded, num_requests, closed;
    const double *times_s, *at_s; /* of the arrival, and of the scheduler: pauses for those that follow another */
    double *arrival_s;
    const i64 *first_follower, *followers; /* of each request; the rest of all in a closed loop */
    double latency_s, tokens_per_s;
    i64 turns[2], next_of_rest, serial;
    double *starts;
    Event *events;
    i64 num_events, events_room;
} Run;

static int before_event(const Event *a, const Event *b) {
    if (a->time_s != b->time_s) return a->time_s < b->time_s;
    if (a->kind != b->kind) return a->kind < b->kind;
    return a->serial < b->serial;
}

static void push_event(Run *run, Event one) {
    run->events = more(run->events, &run->events_room, run->num_events + 1, sizeof(Event));
    i64 i = run->num_events++;
    for (; i && before_event(&one, run->events + (i - 1) / 2); i = (i - 1) / 2) run->events[i] = run->events[(i - 1) / 2];
    run->events[i] = one;
}

static Event pop_event(Run *run) {
    Event first = run->events[0], last = run->events[--run->num_events];
    i64 i = 0;
    for (;;) {
        i64 child = 2 * i + 1;
        if (child >= run->num_events) break;
        if (child + 1 < run->num_events && before_event(run->events + child + 1, run->events + child)) child++;
        if (!before_event(run->events + child, &last)) break;
        run->events[i] = run->events[child];
        i = child;
    }
    run->events[i] = last;
    return first;
}

static i64 route(Run *run, i64 first, i64 count, int chooser) {
    if (!run->least_loaded) return first + run->turns[chooser]++ % count;
    i64 found = first;
    for (i64 i = first + 1; i < first + count; i++)
        if (run->replicas[i]->load < run->replicas[found]->load) found = i;
    return found;
}

static void follow(Run *run, i64 request, double end) {
    run->arrival_s[request] = end + run->times_s[request];
    push_event(run, (Event){end + run->at_s[request], 1, ++run->serial, request});
}

static void tell_done(Run *run, Replica *p) {
    const Log *log = run->log;
    for (i64 i = 0; i < p->num_done; i++) {
        i64 request = p->done[i];
        double end = p->done_s[i];
        i64 serial = ++run->serial;
        if (p->hands_over && log->output_len[request] > 1) {
            double moved = end + run->latency_s + (double)log->input_len[request] / run->tokens_per_s;
            log->first_s[request] = moved; /* the decode pool streams the first token as well */
            push_event(run, (Event){moved, 0, serial, request});
            continue;
        }
        if (p->hands_over) {
            log->finish_s[request] = end;
            run->replicas[run->num_front]->finished++;
        }
        if (run->closed) {
            i64 rest = run->first_follower[run->num_requests];
            if (run->next_of_rest < rest) follow(run, run->followers[run->next_of_rest++], end);
        } else if (run->first_follower)
            for (i64 j = run->first_follower[request]; j < run->first_follower[request + 1]; j++)
                follow(run, run->followers[j], end);
    }
    p->num_done = 0;
}

void begin_run(Run *run, i64 count, const i64 *requests) {
    i64 everyone = run->num_front + run->num_replicas;
    run->serial = run->num_requests;
    run->starts = calloc((size_t)everyone, sizeof(double));
    for (i64 i = 0; i < everyone; i++) {
        run->replicas[i]->tells = run->first_follower || run->replicas[i]->hands_over;
        run->starts[i] = run->replicas[i]->next_start;
    }
    for (i64 i = 0; i < count; i++) {
        i64 one = requests[i];
        run->arrival_s[one] = run->times_s[one];
        push_event(run, (Event){run->at_s[one], run->log->ready[one] ? 0 : 1, one, one});
    }
}

int go(Run *run, i64 rounds) {
    i64 everyone = run->num_front + run->num_replicas;
    while (rounds--) {
        i64 first = 0;
        for (i64 i = 1; i < everyone; i++)
            if (run->starts[i] < run->starts[first]) first = i;
        double start_s = run->starts[first], arrival = run->num_events ? run->events[0].time_s : INFINITY;
        if (arrival <= start_s) {
            if (arrival == INFINITY) return DONE;
            Event one = pop_event(run);
            i64 at;
            if (!one.kind) {
                *run->log->num_ready += !run->log->ready[one.request];
                run->log->ready[one.request] = 1;
                at = route(run, run->num_front, run->num_replicas, 1);
            } else at = run->num_front ? route(run, 0, run->num_front, 0) : route(run, 0, run->num_replicas, 0);
            submit(run->replicas[at], one.request, arrival);
            tell_next(run->replicas[at]);
            run->starts[at] = run->replicas[at]->next_start;
            continue;
        }
        Replica *p = run->replicas[first];
        run->starts[first] = INFINITY;
        double until = arrival;
        for (i64 i = 0; i < everyone; i++) until = fmin(until, run->starts[i]);
        int state = advance_passes(p, fmax(until, nextafter(start_s, INFINITY)), NEVER);
        if (state) return state;
        tell_next(p);
        run->starts[first] = p->next_start;
        tell_done(run, p);
    }
    return MORE;
}

void release_run(Run *run) {
    free(run->starts);
    free(run->events);
}

/* SHA-256 of this file, given by hatch_build.py, so that native.py never loads a library of another version. */
const char *source_hash(void) {
    return SOURCE_HASH;
}

void sizes(i64 *found) {
    found[0] = sizeof(Log);
    found[1] = sizeof(Kind);
    found[2] = sizeof(Table);
    found[3] = sizeof(Clock);
    found[4] = sizeof(Replica);
    found[5] = sizeof(Run);
}
