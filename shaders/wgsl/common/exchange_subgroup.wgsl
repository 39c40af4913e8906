// Shares a 64-wide slice of activations among the 8 lanes of a cluster by subgroup shuffles.
// Lane i of the cluster holds elements 8i..8i+7 as two vec4f (low, high) for every token of the tile.
// Needs subgroups whose size is a multiple of 8.

fn publish(token: u32, low: vec4f, high: vec4f) {
}

fn settle() {
}

fn take_low(token: u32, source: u32, own: vec4f) -> vec4f {
    return subgroupShuffle(own, cluster_base + source);
}

fn take_high(token: u32, source: u32, own: vec4f) -> vec4f {
    return subgroupShuffle(own, cluster_base + source);
}

// Sum of the slice's elements 0..31 (x) and 32..63 (y), added as a tree so that both exchanges agree to the bit.
fn half_sums(token: u32, low: vec4f, high: vec4f) -> vec2f {
    let own = octet_sum(low, high);
    let pair = own + subgroupShuffleXor(own, 1u);
    let four = pair + subgroupShuffleXor(pair, 2u);
    return vec2f(subgroupShuffle(four, cluster_base), subgroupShuffle(four, cluster_base + 4u));
}
