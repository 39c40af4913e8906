// The smallest rank of a workgroup and whose it is; the lower id among equals.

const WG: u32 = 256u;    // threads per workgroup; every WebGPU device allows 256
const GROUP: u32 = 16u;  // its square root: reductions run in two steps of 16, since barriers cost more than additions

var<workgroup> bests: array<vec2u, WG>;

fn better_of(a: vec2u, b: vec2u) -> vec2u {
    return select(a, b, b.x < a.x || (b.x == a.x && b.y < a.y));
}

fn gather_best(first: u32, apart: u32) {
    var best = bests[first];
    for (var i = 1u; i < GROUP; i++) {
        best = better_of(best, bests[first + i * apart]);
    }
    bests[first] = best;
}

// (rank, id), the same in every thread. Each thread brings four.
fn reduce_best(local: u32, ranks: vec4u, ids: vec4u) -> vec2u {
    let left = better_of(vec2u(ranks.x, ids.x), vec2u(ranks.y, ids.y));
    let right = better_of(vec2u(ranks.z, ids.z), vec2u(ranks.w, ids.w));
    bests[local] = better_of(left, right);
    workgroupBarrier();
    if (local < GROUP) {
        gather_best(local * GROUP, 1u);
    }
    workgroupBarrier();
    if (local == 0u) {
        gather_best(0u, GROUP);
    }
    return workgroupUniformLoad(&bests[0]);
}
