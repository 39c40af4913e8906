// linear: y[t,:] = W x[t,:] + bias, the plain mat-mul; it needs no subgroups
// grid      (tiles of 32 rows / CLUSTERS, tokens / TILE, 1), a cluster per tile of rows
// binding   step     read        header and rows of the step
// binding   shape    read        sizes and strides; no uniform, since lavapipe would compile the kernel anew for each
// binding   weights  read        [rows/8][K/64][8] words of the packed matrix
// binding   scales   read        [rows/8][K/64][8] scale words
// binding   bias     read        [rows] f32; read only with BIAS
// binding   x        read        [tokens, K] f32, K padded with zeros to 64
// binding   y        read_write  [tokens, y_stride] f32
// override  CLUSTERS  clusters per workgroup, each with a tile of rows of its own
// override  BIAS      whether a bias is added
// override  SAMPLED   whether tokens are the step's samples instead of its rows
// slot      words    how 32 bytes are loaded
// slot      weights  the block type
// slot      tile     tokens per tile
// source    Dettmers et al. 2022, arXiv:2208.07339, for the idea of dequantizing inside the product
override CLUSTERS: u32 = 8u;
override BIAS: bool = false;
override SAMPLED: bool = false;

@group(0) @binding(0) var<storage, read> step: array<vec4u>;
@group(0) @binding(1) var<storage, read> shape: Shape;
@group(0) @binding(2) var<storage, read> weights: array<Word8>;
@group(0) @binding(3) var<storage, read> scales: array<ScaleWord>;
@group(0) @binding(4) var<storage, read> bias: array<f32>;
@group(0) @binding(5) var<storage, read> x: array<Word8>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

//!include "common/cluster.wgsl"
//!include "common/exchange_workgroup.wgsl"
//!include "common/step.wgsl"
//!include <words>
//!include <weights>
//!include <tile>

var<private> first_row: u32;
var<private> tile: u32;

fn x_row(token: u32) -> u32 {
    if (SAMPLED) {
        return sample_row(min(token, num_samples() - 1u));
    }
    return min(token, num_rows() - 1u);
}

fn emit(t: u32, sums: vec4f) {
    for (var g = 0u; g < 4u; g++) {
        let row = (tile * 4u + g) * 8u + lane;
        if (row < shape.rows) {
            let at = row + shape.first_tile * 32u;
            var value = sums[g];
            if (BIAS) {
                value += bias[at];
            }
            y[(first_row + t) * shape.y_stride + at] = value;
        }
    }
}

@compute @workgroup_size(8u * CLUSTERS, 1, 1)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    lane = local % 8u;
    cluster = local / 8u;
    k_first = 0u;
    k_step = 1u;
    first_row = group.y * TILE;
    let tokens = select(num_rows(), num_samples(), SAMPLED);
    tile = group.x * CLUSTERS + cluster;
    let tiles = (shape.rows + 31u) / 32u;
    let sums = accumulate(min(tile, tiles - 1u), first_row);
    if (tile < tiles && first_row < tokens) {
        emit_all(sums, tokens - first_row);
    }
}
