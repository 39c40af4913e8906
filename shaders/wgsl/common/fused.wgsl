// What the fused mat-mul kernels share: a workgroup is one tile of 32 rows whose K is split among its clusters, the
// norm of the input is folded in as a factor per token, and cluster 0 writes.

// Lanes are numbered by the subgroup, since shuffles are.
fn enter(subgroup_lane: u32, subgroup: u32, subgroup_width: u32) {
    lane = subgroup_lane & 7u;
    cluster_base = subgroup_lane & ~7u;
    cluster = subgroup * (subgroup_width / 8u) + subgroup_lane / 8u;
    k_first = cluster;
    k_step = CLUSTERS;
}

// Sum over the 8 lanes of the cluster, the same in each.
fn cluster_sum(own: f32) -> f32 {
    let pair = own + subgroupShuffleXor(own, 1u);
    let four = pair + subgroupShuffleXor(pair, 2u);
    return four + subgroupShuffleXor(four, 4u);
}
