// The mat-mul of one cluster for a tile of 8 tokens: 32 output rows in four vec4f lanes per token.
// One line per (octet, token): loops over register arrays cost five to nine times as much. Sums in tile1's order.

const TILE: u32 = 8u;

struct Sums {
    t0: vec4f, t1: vec4f, t2: vec4f, t3: vec4f, t4: vec4f, t5: vec4f, t6: vec4f, t7: vec4f,
}

fn accumulate(tile: u32, first: u32) -> Sums {
    var s = Sums(vec4f(), vec4f(), vec4f(), vec4f(), vec4f(), vec4f(), vec4f(), vec4f());
    let o0 = x_row(first) * shape.x_stride + lane;
    let o1 = x_row(first + 1u) * shape.x_stride + lane;
    let o2 = x_row(first + 2u) * shape.x_stride + lane;
    let o3 = x_row(first + 3u) * shape.x_stride + lane;
    let o4 = x_row(first + 4u) * shape.x_stride + lane;
    let o5 = x_row(first + 5u) * shape.x_stride + lane;
    let o6 = x_row(first + 6u) * shape.x_stride + lane;
    let o7 = x_row(first + 7u) * shape.x_stride + lane;
    for (var b = k_first; b < shape.k_blocks; b += k_step) {
        let w0 = x[o0 + 8u * b];
        let l0 = bitcast<vec4f>(low_of(w0));
        let h0 = bitcast<vec4f>(high_of(w0));
        let w1 = x[o1 + 8u * b];
        let l1 = bitcast<vec4f>(low_of(w1));
        let h1 = bitcast<vec4f>(high_of(w1));
        let w2 = x[o2 + 8u * b];
        let l2 = bitcast<vec4f>(low_of(w2));
        let h2 = bitcast<vec4f>(high_of(w2));
        let w3 = x[o3 + 8u * b];
        let l3 = bitcast<vec4f>(low_of(w3));
        let h3 = bitcast<vec4f>(high_of(w3));
        let w4 = x[o4 + 8u * b];
        let l4 = bitcast<vec4f>(low_of(w4));
        let h4 = bitcast<vec4f>(high_of(w4));
        let w5 = x[o5 + 8u * b];
        let l5 = bitcast<vec4f>(low_of(w5));
        let h5 = bitcast<vec4f>(high_of(w5));
        let w6 = x[o6 + 8u * b];
        let l6 = bitcast<vec4f>(low_of(w6));
        let h6 = bitcast<vec4f>(high_of(w6));
        let w7 = x[o7 + 8u * b];
        let l7 = bitcast<vec4f>(low_of(w7));
        let h7 = bitcast<vec4f>(high_of(w7));
        publish(0u, l0, h0);
        publish(1u, l1, h1);
        publish(2u, l2, h2);
        publish(3u, l3, h3);
        publish(4u, l4, h4);
        publish(5u, l5, h5);
        publish(6u, l6, h6);
        publish(7u, l7, h7);
        settle();
        let k = load_block(tile, b);
        let x0 = half_sums(0u, l0, h0);
        let x1 = half_sums(1u, l1, h1);
        let x2 = half_sums(2u, l2, h2);
        let x3 = half_sums(3u, l3, h3);
        let x4 = half_sums(4u, l4, h4);
        let x5 = half_sums(5u, l5, h5);
        let x6 = half_sums(6u, l6, h6);
        let x7 = half_sums(7u, l7, h7);
        var p0 = vec4f();
        var p1 = vec4f();
        var p2 = vec4f();
        var p3 = vec4f();
        var p4 = vec4f();
        var p5 = vec4f();
        var p6 = vec4f();
        var p7 = vec4f();
        {
            let e = unpack(k, 0u);
            p0 = dot8(p0, e, take_low(0u, 0u, l0), take_high(0u, 0u, h0));
            p1 = dot8(p1, e, take_low(1u, 0u, l1), take_high(1u, 0u, h1));
            p2 = dot8(p2, e, take_low(2u, 0u, l2), take_high(2u, 0u, h2));
            p3 = dot8(p3, e, take_low(3u, 0u, l3), take_high(3u, 0u, h3));
            p4 = dot8(p4, e, take_low(4u, 0u, l4), take_high(4u, 0u, h4));
            p5 = dot8(p5, e, take_low(5u, 0u, l5), take_high(5u, 0u, h5));
            p6 = dot8(p6, e, take_low(6u, 0u, l6), take_high(6u, 0u, h6));
            p7 = dot8(p7, e, take_low(7u, 0u, l7), take_high(7u, 0u, h7));
        }
        {
            let e = unpack(k, 1u);
            p0 = dot8(p0, e, take_low(0u, 1u, l0), take_high(0u, 1u, h0));
            p1 = dot8(p1, e, take_low(1u, 1u, l1), take_high(1u, 1u, h1));
            p2 = dot8(p2, e, take_low(2u, 1u, l2), take_high(2u, 1u, h2));
            p3 = dot8(p3, e, take_low(3u, 1u, l3), take_high(3u, 1u, h3));
            p4 = dot8(p4, e, take_low(4u, 1u, l4), take_high(4u, 1u, h4));
            p5 = dot8(p5, e, take_low(5u, 1u, l5), take_high(5u, 1u, h5));
            p6 = dot8(p6, e, take_low(6u, 1u, l6), take_high(6u, 1u, h6));
            p7 = dot8(p7, e, take_low(7u, 1u, l7), take_high(7u, 1u, h7));
        }
        {
            let e = unpack(k, 2u);
            p0 = dot8(p0, e, take_low(0u, 2u, l0), take_high(0u, 2u, h0));
            p1 = dot8(p1, e, take_low(1u, 2u, l1), take_high(1u, 2u, h1));
            p2 = dot8(p2, e, take_low(2u, 2u, l2), take_high(2u, 2u, h2));
            p3 = dot8(p3, e, take_low(3u, 2u, l3), take_high(3u, 2u, h3));
            p4 = dot8(p4, e, take_low(4u, 2u, l4), take_high(4u, 2u, h4));
            p5 = dot8(p5, e, take_low(5u, 2u, l5), take_high(5u, 2u, h5));
            p6 = dot8(p6, e, take_low(6u, 2u, l6), take_high(6u, 2u, h6));
            p7 = dot8(p7, e, take_low(7u, 2u, l7), take_high(7u, 2u, h7));
        }
        {
            let e = unpack(k, 3u);
            p0 = dot8(p0, e, take_low(0u, 3u, l0), take_high(0u, 3u, h0));
            p1 = dot8(p1, e, take_low(1u, 3u, l1), take_high(1u, 3u, h1));
            p2 = dot8(p2, e, take_low(2u, 3u, l2), take_high(2u, 3u, h2));
            p3 = dot8(p3, e, take_low(3u, 3u, l3), take_high(3u, 3u, h3));
            p4 = dot8(p4, e, take_low(4u, 3u, l4), take_high(4u, 3u, h4));
            p5 = dot8(p5, e, take_low(5u, 3u, l5), take_high(5u, 3u, h5));
            p6 = dot8(p6, e, take_low(6u, 3u, l6), take_high(6u, 3u, h6));
            p7 = dot8(p7, e, take_low(7u, 3u, l7), take_high(7u, 3u, h7));
        }
        s.t0 = fold(s.t0, p0, k, 0u, x0.x);
        s.t1 = fold(s.t1, p1, k, 0u, x1.x);
        s.t2 = fold(s.t2, p2, k, 0u, x2.x);
        s.t3 = fold(s.t3, p3, k, 0u, x3.x);
        s.t4 = fold(s.t4, p4, k, 0u, x4.x);
        s.t5 = fold(s.t5, p5, k, 0u, x5.x);
        s.t6 = fold(s.t6, p6, k, 0u, x6.x);
        s.t7 = fold(s.t7, p7, k, 0u, x7.x);
        p0 = vec4f();
        p1 = vec4f();
        p2 = vec4f();
        p3 = vec4f();
        p4 = vec4f();
        p5 = vec4f();
        p6 = vec4f();
        p7 = vec4f();
        {
            let e = unpack(k, 4u);
            p0 = dot8(p0, e, take_low(0u, 4u, l0), take_high(0u, 4u, h0));
            p1 = dot8(p1, e, take_low(1u, 4u, l1), take_high(1u, 4u, h1));
            p2 = dot8(p2, e, take_low(2u, 4u, l2), take_high(2u, 4u, h2));
            p3 = dot8(p3, e, take_low(3u, 4u, l3), take_high(3u, 4u, h3));
            p4 = dot8(p4, e, take_low(4u, 4u, l4), take_high(4u, 4u, h4));
            p5 = dot8(p5, e, take_low(5u, 4u, l5), take_high(5u, 4u, h5));
            p6 = dot8(p6, e, take_low(6u, 4u, l6), take_high(6u, 4u, h6));
            p7 = dot8(p7, e, take_low(7u, 4u, l7), take_high(7u, 4u, h7));
        }
        {
            let e = unpack(k, 5u);
            p0 = dot8(p0, e, take_low(0u, 5u, l0), take_high(0u, 5u, h0));
            p1 = dot8(p1, e, take_low(1u, 5u, l1), take_high(1u, 5u, h1));
            p2 = dot8(p2, e, take_low(2u, 5u, l2), take_high(2u, 5u, h2));
            p3 = dot8(p3, e, take_low(3u, 5u, l3), take_high(3u, 5u, h3));
            p4 = dot8(p4, e, take_low(4u, 5u, l4), take_high(4u, 5u, h4));
            p5 = dot8(p5, e, take_low(5u, 5u, l5), take_high(5u, 5u, h5));
            p6 = dot8(p6, e, take_low(6u, 5u, l6), take_high(6u, 5u, h6));
            p7 = dot8(p7, e, take_low(7u, 5u, l7), take_high(7u, 5u, h7));
        }
        {
            let e = unpack(k, 6u);
            p0 = dot8(p0, e, take_low(0u, 6u, l0), take_high(0u, 6u, h0));
            p1 = dot8(p1, e, take_low(1u, 6u, l1), take_high(1u, 6u, h1));
            p2 = dot8(p2, e, take_low(2u, 6u, l2), take_high(2u, 6u, h2));
            p3 = dot8(p3, e, take_low(3u, 6u, l3), take_high(3u, 6u, h3));
            p4 = dot8(p4, e, take_low(4u, 6u, l4), take_high(4u, 6u, h4));
            p5 = dot8(p5, e, take_low(5u, 6u, l5), take_high(5u, 6u, h5));
            p6 = dot8(p6, e, take_low(6u, 6u, l6), take_high(6u, 6u, h6));
            p7 = dot8(p7, e, take_low(7u, 6u, l7), take_high(7u, 6u, h7));
        }
        {
            let e = unpack(k, 7u);
            p0 = dot8(p0, e, take_low(0u, 7u, l0), take_high(0u, 7u, h0));
            p1 = dot8(p1, e, take_low(1u, 7u, l1), take_high(1u, 7u, h1));
            p2 = dot8(p2, e, take_low(2u, 7u, l2), take_high(2u, 7u, h2));
            p3 = dot8(p3, e, take_low(3u, 7u, l3), take_high(3u, 7u, h3));
            p4 = dot8(p4, e, take_low(4u, 7u, l4), take_high(4u, 7u, h4));
            p5 = dot8(p5, e, take_low(5u, 7u, l5), take_high(5u, 7u, h5));
            p6 = dot8(p6, e, take_low(6u, 7u, l6), take_high(6u, 7u, h6));
            p7 = dot8(p7, e, take_low(7u, 7u, l7), take_high(7u, 7u, h7));
        }
        s.t0 = fold(s.t0, p0, k, 1u, x0.y);
        s.t1 = fold(s.t1, p1, k, 1u, x1.y);
        s.t2 = fold(s.t2, p2, k, 1u, x2.y);
        s.t3 = fold(s.t3, p3, k, 1u, x3.y);
        s.t4 = fold(s.t4, p4, k, 1u, x4.y);
        s.t5 = fold(s.t5, p5, k, 1u, x5.y);
        s.t6 = fold(s.t6, p6, k, 1u, x6.y);
        s.t7 = fold(s.t7, p7, k, 1u, x7.y);
        settle();
    }
    return s;
}

// Calls the kernel's emit(token, rows) for each token of the tile that exists.
fn emit_all(s: Sums, tokens: u32) {
    var rows = array<vec4f, 8>(s.t0, s.t1, s.t2, s.t3, s.t4, s.t5, s.t6, s.t7);
    for (var t = 0u; t < min(tokens, 8u); t++) {
        emit(t, rows[t]);
    }
}

// Adds up what the clusters of the workgroup have summed, in their order; all of them get the whole.
var<workgroup> cluster_sums: array<vec4f, 64u * CLUSTERS>;

fn merge_clusters(s: Sums) -> Sums {
    if (CLUSTERS == 1u) {
        return s;
    }
    let own = cluster * 64u + lane;
    cluster_sums[own] = s.t0;
    cluster_sums[own + 8u] = s.t1;
    cluster_sums[own + 16u] = s.t2;
    cluster_sums[own + 24u] = s.t3;
    cluster_sums[own + 32u] = s.t4;
    cluster_sums[own + 40u] = s.t5;
    cluster_sums[own + 48u] = s.t6;
    cluster_sums[own + 56u] = s.t7;
    workgroupBarrier();
    var whole = Sums(cluster_sums[lane], cluster_sums[lane + 8u], cluster_sums[lane + 16u], cluster_sums[lane + 24u], cluster_sums[lane + 32u], cluster_sums[lane + 40u], cluster_sums[lane + 48u], cluster_sums[lane + 56u]);
    for (var c = 1u; c < CLUSTERS; c++) {
        let at = c * 64u + lane;
        whole.t0 += cluster_sums[at];
        whole.t1 += cluster_sums[at + 8u];
        whole.t2 += cluster_sums[at + 16u];
        whole.t3 += cluster_sums[at + 24u];
        whole.t4 += cluster_sums[at + 32u];
        whole.t5 += cluster_sums[at + 40u];
        whole.t6 += cluster_sums[at + 48u];
        whole.t7 += cluster_sums[at + 56u];
    }
    return whole;
}
