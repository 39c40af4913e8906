// gate_up_fused: y = silu(Wg (norm of x)) * (Wu (norm of x)), the row groups of gate and up interleaved
// grid      (tiles of 32 rows, of which 16 are gate and 16 up; tokens / TILE, 1)
// binding   step      read        header and rows of the step
// binding   shape     uniform     sizes and strides; `rows` counts outputs, half of the matrix's rows
// binding   weights   read        [2 * rows/8][K/64][8] words of the packed matrices, gate group, up group, ...
// binding   scales    read        [2 * rows/8][K/64][8] scale words
// binding   x         read        [tokens, K] f32, multiplied by the norm's gain
// binding   partials  read        [tokens, norm_parts] vec4f, partial sums of x^2
// binding   y         read_write  [tokens, y_stride] f32
// override  CLUSTERS  clusters per workgroup, which share K
// slot      words    how 32 bytes are loaded
// slot      weights  the block type
// slot      tile     tokens per tile
// source    Shazeer 2020, arXiv:2002.05202
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
//!include "common/silu.wgsl"
//!include <words>
//!include <weights>
//!include <tile>

var<private> first_row: u32;
var<private> tile: u32;

fn x_row(token: u32) -> u32 {
    return min(token, num_rows() - 1u);
}

fn emit(t: u32, sums: vec4f) {
    let token = first_row + t;
    let v = sums * norm_factor(token);
    if (cluster != 0u) {
        return;
    }
    let at = token * shape.y_stride + shape.first_tile * 16u;
    let row = tile * 16u + lane;
    if (row < shape.rows) {
        y[at + row] = silu(v.x) * v.y;
    }
    if (row + 8u < shape.rows) {
        y[at + row + 8u] = silu(v.z) * v.w;
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
    first_row = group.y * TILE;
    emit_all(merge_clusters(accumulate(tile, first_row)), num_rows() - first_row);
}
