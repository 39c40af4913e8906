// head_fused: logits[s,:] = W (norm of x[row of sample s,:]), the norm folded in
// grid      (tiles of 32 rows, samples / TILE, 1)
// binding   step      read        header and rows of the step
// binding   shape     uniform     sizes and strides
// binding   weights   read        [rows/8][K/64][8] words of the packed matrix
// binding   scales    read        [rows/8][K/64][8] scale words
// binding   x         read        [tokens, K] f32, multiplied by the norm's gain
// binding   partials  read        [tokens, norm_parts] vec4f, partial sums of x^2
// binding   y         read_write  [samples, y_stride] f32
// override  CLUSTERS  clusters per workgroup, which share K
// slot      words    how 32 bytes are loaded
// slot      weights  the block type
// slot      tile     tokens per tile
override CLUSTERS: u32 = 1u;

@group(0) @binding(0) var<storage, read> step: array<vec4u>;
@group(0) @binding(1) var<uniform> shape: Shape;
@group(0) @binding(2) var<storage, read> weights: array<Word8>;
@group(0) @binding(3) var<storage, read> scales: array<ScaleWord>;
@group(0) @binding(4) var<storage, read> x: array<Word8>;
@group(0) @binding(5) var<storage, read> partials: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

//!include "common/cluster.wgsl"
//!include "common/exchange_subgroup.wgsl"
//!include "common/fused.wgsl"
//!include "common/folded_norm.wgsl"
//!include "common/step.wgsl"
//!include <words>
//!include <weights>
//!include <tile>

var<private> first_sample: u32;
var<private> tile: u32;

fn x_row(token: u32) -> u32 {
    return sample_row(min(token, num_samples() - 1u));
}

fn emit(t: u32, sums: vec4f) {
    let values = sums * norm_factor(x_row(first_sample + t));
    for (var g = 0u; g < 4u; g++) {
        let row = (tile * 4u + g) * 8u + lane;
        if (row < shape.rows && cluster == 0u) {
            y[(first_sample + t) * shape.y_stride + shape.first_tile * 32u + row] = values[g];
        }
    }
}

@compute @workgroup_size(8u * CLUSTERS, 1, 1)
fn main(
    @builtin(workgroup_id) group: vec3u,
    @builtin(subgroup_invocation_id) subgroup_lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_width: u32,
) {
    enter(subgroup_lane, subgroup, subgroup_width);
    tile = group.x;
    first_sample = group.y * TILE;
    emit_all(merge_clusters(accumulate(tile, first_sample)), num_samples() - first_sample);
}
