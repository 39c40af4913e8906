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
const LEVELS: u32 = 3u;
const SHARE: u32 = 0xffffffffu;  // as a goal: a share of all weight, known once the bins are summed

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
var<workgroup> sums: array<u32, WG>;
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
    for (var bin = local; bin < BINS; bin += WG) {
        atomicStore(&bins[bin], 0u);
    }
    workgroupBarrier();
}

// Leaves in sums[t] the weight of all bins up to those of thread t.
fn sum_bins(local: u32) {
    workgroupBarrier();
    var own = 0u;
    for (var i = 0u; i < BINS / WG; i++) {
        own += atomicLoad(&bins[local * (BINS / WG) + i]);
    }
    sums[local] = own;
    for (var reach = 1u; reach < WG; reach *= 2u) {
        workgroupBarrier();
        let left = select(0u, sums[max(local, reach) - reach], local >= reach);
        workgroupBarrier();
        sums[local] += left;
    }
    workgroupBarrier();
}

// The window of the bin in which the sum reaches the goal; the last bin for a goal out of reach.
fn narrow(local: u32, window: Window, share: f32) -> Window {
    sum_bins(local);
    let total = sums[WG - 1u];
    let goal = select(window.goal, clamp(u32(ceil(share * f32(total))), 1u, total), window.goal == SHARE);
    var before = window.before + select(0u, sums[max(local, 1u) - 1u], local > 0u);
    let last = local == WG - 1u;
    if (before < goal && (last || window.before + sums[local] >= goal)) {
        var bin = local * (BINS / WG);
        let end = bin + BINS / WG - 1u;
        while (bin < end && before + atomicLoad(&bins[bin]) < goal) {
            before += atomicLoad(&bins[bin]);
            bin++;
        }
        let width = 1u << window.shift;
        let shift = select(0u, 10u, window.shift == 21u);
        picked = Window(window.base + bin * width, width - 1u, shift, goal, before, atomicLoad(&bins[bin]));
    }
    return workgroupUniformLoad(&picked);
}
