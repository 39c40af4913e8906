// out_fused: residual += W x + bias, with the next norm prepared: residual * gain and partial sums of residual^2
// grid      (tiles of 32 rows, tokens / TILE, 1)
// binding   step           read        header and rows of the step
// binding   shape          uniform     sizes and strides
// binding   weights        read        [rows/8][K/64][8] words of the packed matrix
// binding   scales         read        [rows/8][K/64][8] scale words
// binding   bias           read        [rows] f32; read only with BIAS
// binding   gain           read        [rows] f32 of the norm that follows
// binding   x              read        [tokens, K] f32
// binding   residual       read_write  [tokens, y_stride] f32
// binding   residual_gain  read_write  [tokens, y_stride] f32
// binding   partials       read_write  [tokens, 4 * norm_parts] f32, one per tile
// override  CLUSTERS  clusters per workgroup, which share K
// override  BIAS      whether a bias is added
// slot      words    how 32 bytes are loaded
// slot      weights  the block type
// slot      tile     tokens per tile
override CLUSTERS: u32 = 1u;
override BIAS: bool = false;

@group(0) @binding(0) var<storage, read> step: array<vec4u>;
@group(0) @binding(1) var<uniform> shape: Shape;
@group(0) @binding(2) var<storage, read> weights: array<Word8>;
@group(0) @binding(3) var<storage, read> scales: array<ScaleWord>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read> gain: array<f32>;
@group(0) @binding(6) var<storage, read> x: array<Word8>;
@group(0) @binding(7) var<storage, read_write> residual: array<f32>;
@group(0) @binding(8) var<storage, read_write> residual_gain: array<f32>;
@group(0) @binding(9) var<storage, read_write> partials: array<f32>;

//!include "common/cluster.wgsl"
//!include "common/exchange_subgroup.wgsl"
//!include "common/fused.wgsl"
//!include "common/step.wgsl"
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
    var square = 0.0;
    for (var g = 0u; g < 4u; g++) {
        let row = (tile * 4u + g) * 8u + lane;
        if (row < shape.rows) {
            let n = shape.first_tile * 32u + row;
            let at = token * shape.y_stride + n;
            var value = residual[at] + sums[g];
            if (BIAS) {
                value += bias[n];
            }
            square = fma(value, value, square);
            if (cluster == 0u) {
                residual[at] = value;
                residual_gain[at] = value * gain[n];
            }
        }
    }
    let whole = cluster_sum(square);
    if (cluster == 0u && lane == 0u) {
        partials[token * shape.norm_parts * 4u + shape.first_tile + tile] = whole;
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
