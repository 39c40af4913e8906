// rope_write: rotates q in place and k by their positions; k and v go to their page
// grid      (ceil(pairs of q, k and v / 64), rows of the step, 1), one pair of elements per thread
// binding   step        read        header and rows of the step
// binding   heads       uniform     sizes of attention
// binding   rope        read        [positions, rope_dim/2] (cos, sin)
// binding   page_table  read        [slots, table_stride] pages
// binding   k           read        [tokens, num_kv_heads * head_dim, padded to 64] f32
// binding   v           read        [tokens, num_kv_heads * head_dim, padded to 64] f32
// binding   q           read_write  [tokens, q_stride] f32
// binding   k_pages     read_write  keys of this layer
// binding   v_pages     read_write  values of this layer
// slot      kv_write  the type of the pages
// source    Su et al. 2021, arXiv:2104.09864 (rotary embedding); Kwon et al. 2023, arXiv:2309.06180 (pages)

@group(0) @binding(0) var<storage, read> step: array<vec4u>;
@group(0) @binding(1) var<uniform> heads: Heads;
@group(0) @binding(2) var<storage, read> rope: array<vec2f>;
@group(0) @binding(3) var<storage, read> page_table: array<u32>;
@group(0) @binding(4) var<storage, read> k: array<vec2f>;
@group(0) @binding(5) var<storage, read> v: array<vec2f>;
@group(0) @binding(6) var<storage, read_write> q: array<vec2f>;
@group(0) @binding(7) var<storage, read_write> k_pages: array<u32>;
@group(0) @binding(8) var<storage, read_write> v_pages: array<u32>;

//!include "common/step.wgsl"
//!include "common/heads.wgsl"
//!include <kv_write>

fn rotated(pair: vec2f, element: u32, position: u32) -> vec2f {
    if (element >= heads.rope_dim) {
        return pair;
    }
    let turn = rope[position * (heads.rope_dim / 2u) + element / 2u];
    return vec2f(fma(pair.x, turn.x, -turn.y * pair.y), fma(pair.y, turn.x, turn.y * pair.x));
}

@compute @workgroup_size(64, 1, 1)
fn main(@builtin(global_invocation_id) id: vec3u) {
    let row = row_of(id.y);
    let page = page_table[row.z * heads.table_stride + row.y / PAGE];
    let q_pairs = heads.num_q_heads * heads.head_dim / 2u;
    let kv_pairs = heads.num_kv_heads * heads.head_dim / 2u;
    let kv_stride = (kv_pairs + 31u) / 32u * 32u;
    if (id.x < q_pairs) {
        let at = id.y * (heads.q_stride / 2u) + id.x;
        q[at] = rotated(q[at], 2u * id.x % heads.head_dim, row.y);
    } else if (id.x < q_pairs + kv_pairs) {
        let n = id.x - q_pairs;
        let element = 2u * n % heads.head_dim;
        let pair = rotated(k[id.y * kv_stride + n], element, row.y);
        store_key_pair(key_index(page, 2u * n / heads.head_dim, row.y, element), pair.x, pair.y);
    } else if (id.x < q_pairs + 2u * kv_pairs) {
        let n = id.x - q_pairs - kv_pairs;
        let pair = v[id.y * kv_stride + n];
        store_value_pair(value_index(page, 2u * n / heads.head_dim, row.y, 2u * n % heads.head_dim), pair.x, pair.y);
    }
}
