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
    before: u32,  // weight of all ranks ahead of base
    weight: u32,  // weight inside
}

var<workgroup> bins: array<atomic<u32>, BINS>;
var<workgroup> sums: array<u32, WG>;
var<workgroup> picked: vec3u;

fn whole_window() -> Window {
    return Window(0u, OUTSIDE - 1u, 21u, 0u, 0u);
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
    if (local == 0u) {
        picked = vec3u(BINS - 1u, 0u, 0u);
    }
    workgroupBarrier();
}

// Prefix sums over the threads' shares of the bins; returns the weight of all bins.
fn sum_bins(local: u32) -> u32 {
    workgroupBarrier();
    var own = 0u;
    for (var i = 0u; i < BINS_PER_THREAD; i++) {
        own += atomicLoad(&bins[local * BINS_PER_THREAD + i]);
    }
    sums[local] = own;
    for (var reach = 1u; reach < WG; reach *= 2u) {
        workgroupBarrier();
        var left = 0u;
        if (local >= reach) {
            left = sums[local - reach];
        }
        workgroupBarrier();
        sums[local] += left;
    }
    return workgroupUniformLoad(&sums[WG - 1u]);
}

// The window of the bin in which the sum reaches `goal`, counted from the first rank of all; goal >= 1.
fn narrow(local: u32, window: Window, goal: u32) -> Window {
    var before = window.before;
    if (local > 0u) {
        before += sums[local - 1u];
    }
    if (before < goal && window.before + sums[local] >= goal) {
        var bin = local * BINS_PER_THREAD;
        var weight = atomicLoad(&bins[bin]);
        while (before + weight < goal) {
            before += weight;
            bin++;
            weight = atomicLoad(&bins[bin]);
        }
        picked = vec3u(bin, before, weight);
    }
    let bin = workgroupUniformLoad(&picked);
    let width = 1u << window.shift;
    let shift = select(0u, 10u, window.shift == 21u);
    return Window(window.base + bin.x * width, width - 1u, shift, bin.y, bin.z);
}
