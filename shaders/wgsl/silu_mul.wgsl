// silu_mul: y[t,:] = silu(gate[t,:]) * y[t,:]
// grid      (ceil(width / 256), tokens, 1), four elements per thread
// binding   shape  uniform     x_stride and y_stride count vec4f here
// binding   gate   read        [tokens, width] f32
// binding   y      read_write  [tokens, width] f32, the up projection, replaced
// source    Shazeer 2020, arXiv:2002.05202

@group(0) @binding(0) var<uniform> shape: Shape;
@group(0) @binding(1) var<storage, read> gate: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4f>;

//!include "common/cluster.wgsl"
//!include "common/silu.wgsl"

@compute @workgroup_size(64, 1, 1)
fn main(@builtin(global_invocation_id) id: vec3u) {
    if (id.x < shape.x_stride) {
        let at = id.y * shape.y_stride + id.x;
        let g = gate[id.y * shape.x_stride + id.x];
        y[at] *= vec4f(silu(g.x), silu(g.y), silu(g.z), silu(g.w));
    }
}
