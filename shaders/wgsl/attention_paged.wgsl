// attention_paged: y[r,h,:] = softmax(scale * q[r,h,:] K^T) V over the positions that it reaches, read by page
// grid      (num_kv_heads * quads, rows of the step, ceil(head_dim / 64)); 8 lanes each
// binding   step        read        header and rows of the step
// binding   heads       uniform     sizes of attention
// binding   page_table  read        [slots, table_stride] pages
// binding   q           read        [tokens, q_stride] f32
// binding   k_pages     read        keys of this layer
// binding   v_pages     read        values of this layer
// binding   y           read_write  [tokens, q_stride] f32
// slot      lanes    how the 8 lanes talk
// slot      kv_read  the type of the pages
// slot      reach    which tokens a row attends to
// source    Milakov & Gimelshein 2018, arXiv:1805.02867 (online softmax); Kwon et al. 2023, arXiv:2309.06180 (pages);
//           Ainslie et al. 2023, arXiv:2305.13245 (grouped queries)
//
// Up to four query heads that share a kv head lie in the four components of a vec4f. While scoring, a lane is a token
// (and the token 8 further on); while adding values, it is eight elements of the 64 that the workgroup answers for.
// A page is one step of the online softmax, whoever else is in the step: a row's result has one order of sums.

@group(0) @binding(0) var<storage, read> step: array<vec4u>;
@group(0) @binding(1) var<uniform> heads: Heads;
@group(0) @binding(2) var<storage, read> page_table: array<u32>;
@group(0) @binding(3) var<storage, read> q: array<f32>;
@group(0) @binding(4) var<storage, read> k_pages: array<vec4u>;
@group(0) @binding(5) var<storage, read> v_pages: array<vec4u>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;

//!include "common/cluster.wgsl"
//!include "common/step.wgsl"
//!include "common/heads.wgsl"
//!include <lanes>
//!include <kv_read>
//!include <reach>
//!include "common/attend_row.wgsl"

fn attend(group: vec3u) {
    attend_row(group.y, choose_heads(group.x), group.z);
}
