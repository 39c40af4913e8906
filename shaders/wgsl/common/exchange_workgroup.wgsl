// Shares a 64-wide slice of activations among the 8 lanes of a cluster through workgroup memory.
// Lane i of the cluster holds elements 8i..8i+7 as two vec4f (low, high) for every token of the tile.
// Same order of sums as exchange_subgroup; every lane of the workgroup must reach every settle().

var<workgroup> shared_slice: array<vec4f, 128u * CLUSTERS>;
var<workgroup> shared_sums: array<f32, 64u * CLUSTERS>;

fn publish(token: u32, low: vec4f, high: vec4f) {
    let at = (cluster * 8u + token) * 8u + lane;
    shared_slice[2u * at] = low;
    shared_slice[2u * at + 1u] = high;
    shared_sums[at] = octet_sum(low, high);
}

fn settle() {
    workgroupBarrier();
}

fn take_low(token: u32, source: u32, own: vec4f) -> vec4f {
    return shared_slice[2u * ((cluster * 8u + token) * 8u + source)];
}

fn take_high(token: u32, source: u32, own: vec4f) -> vec4f {
    return shared_slice[2u * ((cluster * 8u + token) * 8u + source) + 1u];
}

fn half_sums(token: u32, low: vec4f, high: vec4f) -> vec2f {
    let at = (cluster * 8u + token) * 8u;
    let first = (shared_sums[at] + shared_sums[at + 1u]) + (shared_sums[at + 2u] + shared_sums[at + 3u]);
    let second = (shared_sums[at + 4u] + shared_sums[at + 5u]) + (shared_sums[at + 6u] + shared_sums[at + 7u]);
    return vec2f(first, second);
}
