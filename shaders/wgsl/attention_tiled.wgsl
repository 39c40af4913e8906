// attention_tiled: attention_paged for 4 rows of a step at a time, which share each key and value that is loaded
// grid      (num_kv_heads * quads, ceil(rows of the step / 4), ceil(head_dim / 64)); 8 lanes each
// binding   step        read        header and rows of the step
// binding   heads       uniform     sizes of attention
// binding   page_table  read        [slots, table_stride] pages
// binding   q           read        [tokens, q_stride] f32
// binding   k_pages     read        keys of this layer
// binding   v_pages     read        values of this layer
// binding   y           read_write  [tokens, q_stride] f32
// slot      lanes    how the 8 lanes talk; by subgroups only
// slot      kv_read  the type of the pages
// slot      reach    which tokens a row attends to
//
// Rows of different sequences, past the last, or too far apart to share what they reach, go one by one. For rows of one sequence every operation on a row is
// that of attend_row: a page that a row does not reach changes its state by exact zeros and ones.

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

const ROWS: u32 = 4u;

fn attend(group: vec3u) {
    let kv_head = choose_heads(group.x);
    let first = group.y * ROWS;
    let count = min(num_rows() - first, ROWS);
    let slot = row_of(first).z;
    var lowest = row_of(first).y;
    var highest = lowest;
    var together = count == ROWS;
    for (var r = 1u; r < count; r++) {
        let next = row_of(first + r);
        together = together && next.z == slot;
        lowest = min(lowest, next.y);
        highest = max(highest, next.y);
    }
    if (together && reach_together(lowest, highest)) {
        attend_rows(first, slot, lowest, highest, kv_head, group.z);
    } else {
        for (var r = 0u; r < count; r++) {
            attend_row(first + r, kv_head, group.z);
        }
    }
}

// The softmax of one row over one page: weights of this lane's two tokens, and how far the earlier sums shrink.
struct PageWeights {
    near: vec4f,
    far: vec4f,
    peak: vec4f,
    shrink: vec4f,
}

fn weigh(near: vec4f, far: vec4f, highest: vec4f, first: u32, position: u32) -> PageWeights {
    let a = select(vec4f(LEFT_OUT), near * heads.scale, reaches(first + lane, position));
    let b = select(vec4f(LEFT_OUT), far * heads.scale, reaches(first + lane + 8u, position));
    let peak = max(highest, lane_max(max(a, b)));
    return PageWeights(exp(a - peak), exp(b - peak), peak, exp(highest - peak));
}

fn attend_rows(row: u32, slot: u32, lowest: u32, last: u32, kv_head: u32, part: u32) {
    let octets = heads.head_dim / 8u;
    let slices = (octets + 7u) / 8u;
    let value_octet = part * 8u + lane;
    let value_lane = min(value_octet, octets - 1u);  // lanes beyond head_dim read, but never write
    let p0 = row_of(row).y;
    let p1 = row_of(row + 1u).y;
    let p2 = row_of(row + 2u).y;
    let p3 = row_of(row + 3u).y;
    var v0 = load_queries(row, 0u);
    var v1 = load_queries(row + 1u, 0u);
    var v2 = load_queries(row + 2u, 0u);
    var v3 = load_queries(row + 3u, 0u);
    var highest0 = vec4f(NO_SCORE);
    var mass0 = vec4f(0.0);
    var highest1 = vec4f(NO_SCORE);
    var mass1 = vec4f(0.0);
    var highest2 = vec4f(NO_SCORE);
    var mass2 = vec4f(0.0);
    var highest3 = vec4f(NO_SCORE);
    var mass3 = vec4f(0.0);
    var o00 = vec4f(0.0);
    var o01 = vec4f(0.0);
    var o02 = vec4f(0.0);
    var o03 = vec4f(0.0);
    var o04 = vec4f(0.0);
    var o05 = vec4f(0.0);
    var o06 = vec4f(0.0);
    var o07 = vec4f(0.0);
    var o10 = vec4f(0.0);
    var o11 = vec4f(0.0);
    var o12 = vec4f(0.0);
    var o13 = vec4f(0.0);
    var o14 = vec4f(0.0);
    var o15 = vec4f(0.0);
    var o16 = vec4f(0.0);
    var o17 = vec4f(0.0);
    var o20 = vec4f(0.0);
    var o21 = vec4f(0.0);
    var o22 = vec4f(0.0);
    var o23 = vec4f(0.0);
    var o24 = vec4f(0.0);
    var o25 = vec4f(0.0);
    var o26 = vec4f(0.0);
    var o27 = vec4f(0.0);
    var o30 = vec4f(0.0);
    var o31 = vec4f(0.0);
    var o32 = vec4f(0.0);
    var o33 = vec4f(0.0);
    var o34 = vec4f(0.0);
    var o35 = vec4f(0.0);
    var o36 = vec4f(0.0);
    var o37 = vec4f(0.0);

    for (var p = page_from(0u, lowest); p <= last / PAGE; p = page_from(p + 1u, lowest)) {
        let page = page_table[slot * heads.table_stride + p];
        let keys = (page * heads.num_kv_heads + kv_head) * octets * PAGE;
        var near0 = vec4f(0.0);
        var far0 = vec4f(0.0);
        var near1 = vec4f(0.0);
        var far1 = vec4f(0.0);
        var near2 = vec4f(0.0);
        var far2 = vec4f(0.0);
        var near3 = vec4f(0.0);
        var far3 = vec4f(0.0);
        for (var slice = 0u; slice < slices; slice++) {
            if (slices > 1u) {
                v0 = load_queries(row, slice);
                v1 = load_queries(row + 1u, slice);
                v2 = load_queries(row + 2u, slice);
                v3 = load_queries(row + 3u, slice);
            }
            for (var o = 0u; o < min(octets - slice * 8u, 8u); o++) {
                let key = keys + (slice * 8u + o) * PAGE + lane;
                let a = load_keys(key);
                let b = load_keys(key + 8u);
                let h0 = heard_queries(v0, o);
                near0 = score(near0, h0, a);
                far0 = score(far0, h0, b);
                let h1 = heard_queries(v1, o);
                near1 = score(near1, h1, a);
                far1 = score(far1, h1, b);
                let h2 = heard_queries(v2, o);
                near2 = score(near2, h2, a);
                far2 = score(far2, h2, b);
                let h3 = heard_queries(v3, o);
                near3 = score(near3, h3, a);
                far3 = score(far3, h3, b);
            }
        }
        let first = p * PAGE;
        let w0 = weigh(near0, far0, highest0, first, p0);
        mass0 = fma(mass0, w0.shrink, lane_sum(w0.near + w0.far));
        highest0 = w0.peak;
        o00 *= w0.shrink;
        o01 *= w0.shrink;
        o02 *= w0.shrink;
        o03 *= w0.shrink;
        o04 *= w0.shrink;
        o05 *= w0.shrink;
        o06 *= w0.shrink;
        o07 *= w0.shrink;
        let w1 = weigh(near1, far1, highest1, first, p1);
        mass1 = fma(mass1, w1.shrink, lane_sum(w1.near + w1.far));
        highest1 = w1.peak;
        o10 *= w1.shrink;
        o11 *= w1.shrink;
        o12 *= w1.shrink;
        o13 *= w1.shrink;
        o14 *= w1.shrink;
        o15 *= w1.shrink;
        o16 *= w1.shrink;
        o17 *= w1.shrink;
        let w2 = weigh(near2, far2, highest2, first, p2);
        mass2 = fma(mass2, w2.shrink, lane_sum(w2.near + w2.far));
        highest2 = w2.peak;
        o20 *= w2.shrink;
        o21 *= w2.shrink;
        o22 *= w2.shrink;
        o23 *= w2.shrink;
        o24 *= w2.shrink;
        o25 *= w2.shrink;
        o26 *= w2.shrink;
        o27 *= w2.shrink;
        let w3 = weigh(near3, far3, highest3, first, p3);
        mass3 = fma(mass3, w3.shrink, lane_sum(w3.near + w3.far));
        highest3 = w3.peak;
        o30 *= w3.shrink;
        o31 *= w3.shrink;
        o32 *= w3.shrink;
        o33 *= w3.shrink;
        o34 *= w3.shrink;
        o35 *= w3.shrink;
        o36 *= w3.shrink;
        o37 *= w3.shrink;
        for (var t = 0u; t < min(last - first + 1u, PAGE); t++) {
            if (!counts(first + t, lowest)) {
                continue;
            }
            let value = load_values(((page * heads.num_kv_heads + kv_head) * PAGE + t) * octets + value_lane);
            let u0 = heard(8u + t / 8u, t % 8u, select(w0.near, w0.far, t >= 8u));
            o00 = fma(u0, vec4f(value.low.x), o00);
            o01 = fma(u0, vec4f(value.low.y), o01);
            o02 = fma(u0, vec4f(value.low.z), o02);
            o03 = fma(u0, vec4f(value.low.w), o03);
            o04 = fma(u0, vec4f(value.high.x), o04);
            o05 = fma(u0, vec4f(value.high.y), o05);
            o06 = fma(u0, vec4f(value.high.z), o06);
            o07 = fma(u0, vec4f(value.high.w), o07);
            let u1 = heard(8u + t / 8u, t % 8u, select(w1.near, w1.far, t >= 8u));
            o10 = fma(u1, vec4f(value.low.x), o10);
            o11 = fma(u1, vec4f(value.low.y), o11);
            o12 = fma(u1, vec4f(value.low.z), o12);
            o13 = fma(u1, vec4f(value.low.w), o13);
            o14 = fma(u1, vec4f(value.high.x), o14);
            o15 = fma(u1, vec4f(value.high.y), o15);
            o16 = fma(u1, vec4f(value.high.z), o16);
            o17 = fma(u1, vec4f(value.high.w), o17);
            let u2 = heard(8u + t / 8u, t % 8u, select(w2.near, w2.far, t >= 8u));
            o20 = fma(u2, vec4f(value.low.x), o20);
            o21 = fma(u2, vec4f(value.low.y), o21);
            o22 = fma(u2, vec4f(value.low.z), o22);
            o23 = fma(u2, vec4f(value.low.w), o23);
            o24 = fma(u2, vec4f(value.high.x), o24);
            o25 = fma(u2, vec4f(value.high.y), o25);
            o26 = fma(u2, vec4f(value.high.z), o26);
            o27 = fma(u2, vec4f(value.high.w), o27);
            let u3 = heard(8u + t / 8u, t % 8u, select(w3.near, w3.far, t >= 8u));
            o30 = fma(u3, vec4f(value.low.x), o30);
            o31 = fma(u3, vec4f(value.low.y), o31);
            o32 = fma(u3, vec4f(value.low.z), o32);
            o33 = fma(u3, vec4f(value.low.w), o33);
            o34 = fma(u3, vec4f(value.high.x), o34);
            o35 = fma(u3, vec4f(value.high.y), o35);
            o36 = fma(u3, vec4f(value.high.z), o36);
            o37 = fma(u3, vec4f(value.high.w), o37);
        }
    }

    if (value_octet < octets) {
        store(row, value_octet, mass0, o00, o01, o02, o03, o04, o05, o06, o07);
        store(row + 1u, value_octet, mass1, o10, o11, o12, o13, o14, o15, o16, o17);
        store(row + 2u, value_octet, mass2, o20, o21, o22, o23, o24, o25, o26, o27);
        store(row + 3u, value_octet, mass3, o30, o31, o32, o33, o34, o35, o36, o37);
    }
}
