// rms_norm: y[t,:] = x[t,:] * gain / sqrt(mean(x[t,:]^2) + eps)
// grid      (tokens, 1, 1), one workgroup per row
// binding   shape  uniform     `rows` elements are real; x_stride and y_stride count vec4f here
// binding   gain   read        [hidden] f32
// binding   x      read        [tokens, hidden] f32
// binding   y      read_write  [tokens, hidden] f32
// source    Zhang & Sennrich 2019, arXiv:1910.07467

@group(0) @binding(0) var<uniform> shape: Shape;
@group(0) @binding(1) var<storage, read> gain: array<vec4f>;
@group(0) @binding(2) var<storage, read> x: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4f>;

//!include "common/cluster.wgsl"
//!include "common/row_sum.wgsl"

@compute @workgroup_size(64, 1, 1)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    var square = 0.0;
    for (var i = local; i < shape.x_stride; i += ROW_WG) {  // the padding is zero
        let v = x[group.x * shape.x_stride + i];
        square += dot(v, v);
    }
    let whole = row_sum(local, square);
    let factor = inverseSqrt(whole / f32(shape.norm_width) + shape.norm_eps);
    for (var i = local; i < shape.x_stride; i += ROW_WG) {
        y[group.x * shape.y_stride + i] = x[group.x * shape.x_stride + i] * factor * gain[i];
    }
}
