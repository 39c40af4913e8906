// probe: what subgroups really are here: their width, and whether shuffles reach the lanes they name
// grid      (1, 1, 1)
// binding   found  read_write  [128] two words per lane: width, shuffled lane

@group(0) @binding(0) var<storage, read_write> found: array<vec2u>;

@compute @workgroup_size(64, 1, 1)
fn main(
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) width: u32,
) {
    let mirrored = subgroupShuffle(subgroup_lane, (subgroup_lane & ~7u) + 7u - (subgroup_lane & 7u));
    found[subgroup * width + subgroup_lane] = vec2u(width, subgroupShuffleXor(mirrored, 1u));
}
