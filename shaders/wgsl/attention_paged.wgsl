// attention_paged: y[r,h,:] = softmax(scale * q[r,h,:] K^T) V over positions 0 .. own, keys and values read by page
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

var<private> first_head: u32;  // first of the up to four query heads
var<private> head_count: u32;

// Element `e` of the four heads' queries; a head beyond the last reads as zero.
fn query(row: u32, e: u32) -> vec4f {
    let at = row * heads.q_stride + first_head * heads.head_dim + e;
    var v = vec4f(0.0);
    if (e < heads.head_dim) {
        v.x = q[at];
        if (head_count > 1u) { v.y = q[at + heads.head_dim]; }
        if (head_count > 2u) { v.z = q[at + 2u * heads.head_dim]; }
        if (head_count > 3u) { v.w = q[at + 3u * heads.head_dim]; }
    }
    return v;
}

struct Queries {
    e0: vec4f, e1: vec4f, e2: vec4f, e3: vec4f, e4: vec4f, e5: vec4f, e6: vec4f, e7: vec4f,
}

fn load_queries(row: u32, slice: u32) -> Queries {
    let e = slice * 64u + lane * 8u;
    let v = Queries(
        query(row, e), query(row, e + 1u), query(row, e + 2u), query(row, e + 3u),
        query(row, e + 4u), query(row, e + 5u), query(row, e + 6u), query(row, e + 7u),
    );
    tell_done();
    tell(0u, v.e0);
    tell(1u, v.e1);
    tell(2u, v.e2);
    tell(3u, v.e3);
    tell(4u, v.e4);
    tell(5u, v.e5);
    tell(6u, v.e6);
    tell(7u, v.e7);
    tell_done();
    return v;
}

fn heard_queries(v: Queries, source: u32) -> Queries {
    return Queries(
        heard(0u, source, v.e0), heard(1u, source, v.e1), heard(2u, source, v.e2), heard(3u, source, v.e3),
        heard(4u, source, v.e4), heard(5u, source, v.e5), heard(6u, source, v.e6), heard(7u, source, v.e7),
    );
}

fn score(sum: vec4f, v: Queries, key: Octet) -> vec4f {
    let a = fma(v.e1, vec4f(key.low.y), fma(v.e0, vec4f(key.low.x), sum));
    let b = fma(v.e3, vec4f(key.low.w), fma(v.e2, vec4f(key.low.z), a));
    let c = fma(v.e5, vec4f(key.high.y), fma(v.e4, vec4f(key.high.x), b));
    return fma(v.e7, vec4f(key.high.w), fma(v.e6, vec4f(key.high.z), c));
}

fn attend(group: vec3u) {
    let row = group.y;
    let at = row_of(row);
    let position = at.y;
    let kv_head = group.x / heads.quads;
    let shared_by = heads.num_q_heads / heads.num_kv_heads;
    let quad = group.x % heads.quads;
    first_head = kv_head * shared_by + quad * 4u;
    head_count = min(shared_by - quad * 4u, 4u);

    let octets = heads.head_dim / 8u;
    let slices = (octets + 7u) / 8u;
    let value_octet = group.z * 8u + lane;
    let value_lane = min(value_octet, octets - 1u);  // lanes beyond head_dim read, but never write

    var queries = load_queries(row, 0u);
    var highest = vec4f(-3.0e38);
    var mass = vec4f(0.0);
    var o0 = vec4f(0.0);
    var o1 = vec4f(0.0);
    var o2 = vec4f(0.0);
    var o3 = vec4f(0.0);
    var o4 = vec4f(0.0);
    var o5 = vec4f(0.0);
    var o6 = vec4f(0.0);
    var o7 = vec4f(0.0);

    for (var p = 0u; p <= position / PAGE; p++) {
        let page = page_table[at.z * heads.table_stride + p];
        let keys = (page * heads.num_kv_heads + kv_head) * octets * PAGE;
        var near = vec4f(0.0);  // score of token `lane`
        var far = vec4f(0.0);   // score of token `lane + 8`
        for (var slice = 0u; slice < slices; slice++) {
            if (slices > 1u) {
                queries = load_queries(row, slice);
            }
            for (var o = 0u; o < min(octets - slice * 8u, 8u); o++) {
                let v = heard_queries(queries, o);
                let key = keys + (slice * 8u + o) * PAGE + lane;
                near = score(near, v, load_keys(key));
                far = score(far, v, load_keys(key + 8u));
            }
        }
        let first = p * PAGE;
        near = select(vec4f(-3.0e38), near * heads.scale, first + lane <= position);
        far = select(vec4f(-3.0e38), far * heads.scale, first + lane + 8u <= position);

        let peak = max(highest, lane_max(max(near, far)));
        let shrink = exp(highest - peak);
        let weight_near = exp(near - peak);
        let weight_far = exp(far - peak);
        mass = fma(mass, shrink, lane_sum(weight_near + weight_far));
        highest = peak;
        o0 *= shrink;
        o1 *= shrink;
        o2 *= shrink;
        o3 *= shrink;
        o4 *= shrink;
        o5 *= shrink;
        o6 *= shrink;
        o7 *= shrink;

        tell_done();
        tell(8u, weight_near);
        tell(9u, weight_far);
        tell_done();
        // Tokens past the row's own are left out: their weight is zero, but their bytes may be anything.
        for (var t = 0u; t < min(position - first + 1u, PAGE); t++) {
            let w = heard(8u + t / 8u, t % 8u, select(weight_near, weight_far, t >= 8u));
            let value = load_values(((page * heads.num_kv_heads + kv_head) * PAGE + t) * octets + value_lane);
            o0 = fma(w, vec4f(value.low.x), o0);
            o1 = fma(w, vec4f(value.low.y), o1);
            o2 = fma(w, vec4f(value.low.z), o2);
            o3 = fma(w, vec4f(value.low.w), o3);
            o4 = fma(w, vec4f(value.high.x), o4);
            o5 = fma(w, vec4f(value.high.y), o5);
            o6 = fma(w, vec4f(value.high.z), o6);
            o7 = fma(w, vec4f(value.high.w), o7);
        }
    }

    if (value_octet < octets) {
        for (var h = 0u; h < head_count; h++) {
            let to = row * heads.q_stride + (first_head + h) * heads.head_dim + value_octet * 8u;
            y[to] = o0[h] / mass[h];
            y[to + 1u] = o1[h] / mass[h];
            y[to + 2u] = o2[h] / mass[h];
            y[to + 3u] = o3[h] / mass[h];
            y[to + 4u] = o4[h] / mass[h];
            y[to + 5u] = o5[h] / mass[h];
            y[to + 6u] = o6[h] / mass[h];
            y[to + 7u] = o7[h] / mass[h];
        }
    }
}
