// The smallest rank of a workgroup of WG threads and whose it is; the lower id among equals.

var<workgroup> bests: array<vec2u, WG>;

fn better_of(a: vec2u, b: vec2u) -> vec2u {
    return select(a, b, b.x < a.x || (b.x == a.x && b.y < a.y));
}

// (rank, id), the same in every thread. Each thread brings four.
fn reduce_best(local: u32, ranks: vec4u, ids: vec4u) -> vec2u {
    let left = better_of(vec2u(ranks.x, ids.x), vec2u(ranks.y, ids.y));
    let right = better_of(vec2u(ranks.z, ids.z), vec2u(ranks.w, ids.w));
    bests[local] = better_of(left, right);
    for (var reach = WG / 2u; reach > 0u; reach /= 2u) {
        workgroupBarrier();
        if (local < reach) {
            bests[local] = better_of(bests[local], bests[local + reach]);
        }
    }
    return workgroupUniformLoad(&bests[0]);
}
