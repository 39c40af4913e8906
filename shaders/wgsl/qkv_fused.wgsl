// qkv_fused: q|k|v = W (norm of x) + bias; q and k rotated by their position; q to the queries, k and v to their page
// grid      (tiles of 32 rows, tokens / TILE, 1)
// binding   step        read        header and rows of the step
// binding   shape       uniform     sizes and strides; rows are those of q, then k, then v
// binding   heads       uniform     sizes of attention
// binding   weights     read        [rows/8][K/64][8] words of the packed matrices, one after the other
// binding   scales      read        [rows/8][K/64][8] scale words
// binding   bias        read        [rows] f32; read only with BIAS
// binding   x           read        [tokens, K] f32, multiplied by the norm's gain
// binding   partials    read        [tokens, norm_parts] vec4f, partial sums of x^2
// binding   rope        read        [positions, rope_dim/2] (cos, sin)
// binding   page_table  read        [slots, table_stride] pages
// binding   q           read_write  [tokens, q_stride] f32
// binding   k_pages     read_write  keys of this layer
// binding   v_pages     read_write  values of this layer
// override  CLUSTERS  clusters per workgroup, which share K
// override  BIAS      whether a bias is added
// slot      words    how 32 bytes are loaded
// slot      words     how 32 bytes are loaded
// slot      weights   the block type
// slot      tile      tokens per tile
// slot      kv_write  the type of the pages
// source    Su et al. 2021, arXiv:2104.09864 (rotary embedding); Kwon et al. 2023, arXiv:2309.06180 (pages)
override CLUSTERS: u32 = 1u;
override BIAS: bool = false;

@group(0) @binding(0) var<storage, read> step: array<vec4u>;
@group(0) @binding(1) var<uniform> shape: Shape;
@group(0) @binding(2) var<uniform> heads: Heads;
@group(0) @binding(3) var<storage, read> weights: array<Word8>;
@group(0) @binding(4) var<storage, read> scales: array<ScaleWord>;
@group(0) @binding(5) var<storage, read> bias: array<f32>;
@group(0) @binding(6) var<storage, read> x: array<Word8>;
@group(0) @binding(7) var<storage, read> partials: array<vec4f>;
@group(0) @binding(8) var<storage, read> rope: array<vec2f>;
@group(0) @binding(9) var<storage, read> page_table: array<u32>;
@group(0) @binding(10) var<storage, read_write> q: array<f32>;
@group(0) @binding(11) var<storage, read_write> k_pages: array<u32>;
@group(0) @binding(12) var<storage, read_write> v_pages: array<u32>;

//!include "common/cluster.wgsl"
//!include "common/exchange_subgroup.wgsl"
//!include "common/fused.wgsl"
//!include "common/folded_norm.wgsl"
//!include "common/step.wgsl"
//!include "common/heads.wgsl"
//!include <words>
//!include <weights>
//!include <tile>
//!include <kv_write>

var<private> first_row: u32;
var<private> tile: u32;

fn x_row(token: u32) -> u32 {
    return min(token, num_rows() - 1u);
}

fn emit(t: u32, sums: vec4f) {
    let token = first_row + t;
    let row = row_of(token);
    let page = page_table[row.z * heads.table_stride + row.y / PAGE];
    let normed = sums * norm_factor(token);
    let q_rows = heads.num_q_heads * heads.head_dim;
    let kv_rows = heads.num_kv_heads * heads.head_dim;
    for (var g = 0u; g < 4u; g++) {
        // A group of 8 rows lies in one head of q, k or v: all of these divide by 8.
        let n = (shape.first_tile + tile) * 32u + g * 8u + lane;
        if (n < q_rows + 2u * kv_rows) {
            place(token, row.y, page, n, q_rows, kv_rows, with_bias(n, normed[g]));
        }
    }
}

fn with_bias(n: u32, value: f32) -> f32 {
    if (BIAS) {
        return value + bias[n];
    }
    return value;
}

fn place(token: u32, position: u32, page: u32, n: u32, q_rows: u32, kv_rows: u32, value: f32) {
    let element = n % heads.head_dim;
    var own = value;
    if (n < q_rows + kv_rows && element < heads.rope_dim) {
        let turn = rope[position * (heads.rope_dim / 2u) + element / 2u];
        let other = subgroupShuffleXor(value, 1u);
        own = fma(value, turn.x, select(turn.y, -turn.y, lane % 2u == 0u) * other);
    }
    let next = subgroupShuffleXor(own, 1u);
    if (cluster != 0u) {
        return;
    }
    if (n < q_rows) {
        q[token * heads.q_stride + n] = own;
    } else if (lane % 2u == 0u) {
        if (n < q_rows + kv_rows) {
            store_key_pair(key_index(page, (n - q_rows) / heads.head_dim, position, element), own, next);
        } else {
            let head = (n - q_rows - kv_rows) / heads.head_dim;
            store_value_pair(value_index(page, head, position, element), own, next);
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
    first_row = group.y * TILE;
    emit_all(merge_clusters(accumulate(tile, first_row)), num_rows() - first_row);
}
