// The unit of every mat-mul: a cluster of 8 lanes computes 32 output rows (4 row groups of 8, a lane per row) for the
// tokens of a tile, walking along K in slices of 64. The entry point sets these before anything else.

struct Shape {
    k_blocks: u32,    // K / 64
    rows: u32,        // output rows that are real; the rest of the last tile is padding
    x_stride: u32,    // from one token's activations to the next, in units of 32 bytes; vec4f where the kernel says so
    y_stride: u32,    // elements from one token's outputs to the next
    first_tile: u32,  // tile of 32 rows at which this window of the matrix starts
    norm_width: u32,  // elements that the folded norm averages over
    norm_parts: u32,  // vec4f of partial sums per token
    norm_eps: f32,
}

struct Eight {
    k0: vec4f, k1: vec4f, k2: vec4f, k3: vec4f, k4: vec4f, k5: vec4f, k6: vec4f, k7: vec4f,
}

// Eight weights of one row, dequantized.
struct Octet {
    low: vec4f,
    high: vec4f,
}

var<private> lane: u32;          // 0..7 in the cluster, equal to the row in its group
var<private> cluster: u32;       // the cluster's number in the workgroup
var<private> cluster_base: u32;  // subgroup lane of the cluster's lane 0
var<private> k_first: u32;       // slices k_first, k_first + k_step, ... belong to this cluster
var<private> k_step: u32;

fn octet_sum(low: vec4f, high: vec4f) -> f32 {
    return ((low.x + low.y) + (low.z + low.w)) + ((high.x + high.y) + (high.z + high.w));
}

fn dot8(sum: vec4f, w: Eight, low: vec4f, high: vec4f) -> vec4f {
    let a = fma(w.k1, vec4f(low.y), fma(w.k0, vec4f(low.x), sum));
    let b = fma(w.k3, vec4f(low.w), fma(w.k2, vec4f(low.z), a));
    let c = fma(w.k5, vec4f(high.y), fma(w.k4, vec4f(high.x), b));
    return fma(w.k7, vec4f(high.w), fma(w.k6, vec4f(high.z), c));
}
