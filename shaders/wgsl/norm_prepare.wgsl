// norm_prepare: what a fused stage wants of the residual after a plain stage wrote it: x * gain and the sum of x^2
// grid      (tokens, 1, 1), one workgroup per row
// binding   shape     uniform     x_stride counts vec4f here
// binding   gain      read        [hidden] f32
// binding   x         read        [tokens, hidden] f32
// binding   x_gain    read_write  [tokens, hidden] f32
// binding   partials  read_write  [tokens, norm_parts] vec4f, the whole sum in the first

@group(0) @binding(0) var<uniform> shape: Shape;
@group(0) @binding(1) var<storage, read> gain: array<vec4f>;
@group(0) @binding(2) var<storage, read> x: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> x_gain: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> partials: array<vec4f>;

//!include "common/cluster.wgsl"
//!include "common/row_sum.wgsl"

@compute @workgroup_size(64, 1, 1)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    var square = 0.0;
    for (var i = local; i < shape.x_stride; i += ROW_WG) {
        let v = x[group.x * shape.x_stride + i];
        x_gain[group.x * shape.x_stride + i] = v * gain[i];
        square += dot(v, v);
    }
    let whole = row_sum(local, square);
    for (var i = local; i < shape.norm_parts; i += ROW_WG) {
        partials[group.x * shape.norm_parts + i] = vec4f(select(0.0, whole, i == 0u), 0.0, 0.0, 0.0);
    }
}
