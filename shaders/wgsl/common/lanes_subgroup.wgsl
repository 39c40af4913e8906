// Eight lanes that talk by subgroup shuffles: attention's half of the exchange.

@compute @workgroup_size(8, 1, 1)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(subgroup_invocation_id) subgroup_lane: u32) {
    lane = subgroup_lane & 7u;
    cluster_base = subgroup_lane & ~7u;
    attend(group);
}

fn lane_max(own: vec4f) -> vec4f {
    let pair = max(own, subgroupShuffleXor(own, 1u));
    let four = max(pair, subgroupShuffleXor(pair, 2u));
    return max(four, subgroupShuffleXor(four, 4u));
}

fn lane_sum(own: vec4f) -> vec4f {
    let pair = own + subgroupShuffleXor(own, 1u);
    let four = pair + subgroupShuffleXor(pair, 2u);
    return four + subgroupShuffleXor(four, 4u);
}

// One vec4f of eight that lane `source` holds; `slot` says which, and `own` is this lane's.
fn tell(slot: u32, own: vec4f) {
}

fn tell_done() {
}

fn heard(slot: u32, source: u32, own: vec4f) -> vec4f {
    return subgroupShuffle(own, cluster_base + source);
}
