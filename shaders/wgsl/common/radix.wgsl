// Weighted selection without a sort: which of the 2^32 possible ranks is the one at which the weights, summed in rank
// order, reach a goal. Three levels of up to 2048 bins: 11, 11 and 10 bits of the rank.
//
//     level 0   |------- 2^32 ranks, 2^21 to a bin -------|
//     level 1        |- one bin of it, 2^10 to a bin -|
//     level 2            |- one of those, 1 to a bin -|
//
// The caller fills the bins of each level, since what weighs how much differs; integers make the sums exact and
// independent of the order in which threads add.

const BINS: u32 = 2048u;
const BINS_PER_THREAD: u32 = BINS / WG;
const LEVELS: u32 = 3u;

// The ranks under search: `base` to `base + span`.
struct Window {
    base: u32,
    span: u32,
    shift: u32,
    goal: u32,    // the sum to reach, counted from rank 0
    before: u32,  // weight of all ranks ahead of base
    weight: u32,  // weight inside
}

var<workgroup> bins: array<atomic<u32>, BINS>;
var<workgroup> thread_sums: array<u32, WG>;
var<workgroup> group_sums: array<u32, GROUP>;
var<workgroup> picked: Window;

fn whole_window(goal: u32) -> Window {
    return Window(0u, OUTSIDE - 1u, 21u, goal, 0u, 0u);
}

fn add_weight(window: Window, rank: u32, weight: u32) {
    let offset = rank - window.base;
    if (offset <= window.span) {
        atomicAdd(&bins[offset >> window.shift], weight);
    }
}

fn clear_bins(local: u32) {
    for (var i = 0u; i < BINS_PER_THREAD; i++) {
        atomicStore(&bins[local + i * WG], 0u);
    }
    workgroupBarrier();
}

fn sum_bins(local: u32) {
    workgroupBarrier();
    var own = 0u;
    for (var i = 0u; i < BINS_PER_THREAD; i++) {
        own += atomicLoad(&bins[local * BINS_PER_THREAD + i]);
    }
    thread_sums[local] = own;
    workgroupBarrier();
    if (local < GROUP) {
        var sum = 0u;
        for (var i = 0u; i < GROUP; i++) {
            sum += thread_sums[local * GROUP + i];
        }
        group_sums[local] = sum;
    }
    workgroupBarrier();
}

// The window of the bin in which the sum reaches the goal: first the group of threads that summed it, then the thread,
// then the bin. The last of each is taken untested, so a goal out of reach ends at the last bin.
fn reached(window: Window) -> Window {
    var before = window.before;
    var at = 0u;
    for (var i = 1u; i < GROUP && before + group_sums[at] < window.goal; i++) {
        before += group_sums[at];
        at++;
    }
    at *= GROUP;
    for (var i = 1u; i < GROUP && before + thread_sums[at] < window.goal; i++) {
        before += thread_sums[at];
        at++;
    }
    at *= BINS_PER_THREAD;
    for (var i = 1u; i < BINS_PER_THREAD && before + atomicLoad(&bins[at]) < window.goal; i++) {
        before += atomicLoad(&bins[at]);
        at++;
    }
    let width = 1u << window.shift;
    let shift = select(0u, 10u, window.shift == 21u);
    return Window(window.base + at * width, width - 1u, shift, window.goal, before, atomicLoad(&bins[at]));
}

// A goal of 0 stands for `share` of all weight.
fn narrow(local: u32, window: Window, share: f32) -> Window {
    sum_bins(local);
    if (local == 0u) {
        var whole = window;
        if (window.goal == 0u) {
            var total = 0u;
            for (var i = 0u; i < GROUP; i++) {
                total += group_sums[i];
            }
            whole.goal = clamp(u32(ceil(share * f32(total))), 1u, total);
        }
        picked = reached(whole);
    }
    return workgroupUniformLoad(&picked);
}
