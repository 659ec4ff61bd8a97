//! The kernels of the family: comparisons of draws from two samplers.

use super::{
    ByDistances, Comparison, Density, Itself, LastFactor, MatchProbability, MeanCosine, MeanDistance, SampledScore,
    DRAWS,
};
use crate::error::Error;
use crate::kernels::pair_op::{pair_op, BoxedKernel, Facts, Family, PairOp, Purpose, Request};
use crate::kernels::samplers::{Normal, Normals, Sampler, VonMisesFisher};
use crate::view::Matrix;
use LastFactor::{Exact, Paper, Published};

const NORMAL: Option<&str> = Some("sample_normal");
const VMF: Option<&str> = Some("sample_vmf");

/// The facts of a comparison of draws from the samplers of these names.
const fn facts(
    name: &'static str,
    compares: &'static str,
    uncertainty: &'static str,
    samplers: [Option<&'static str>; 2],
) -> Facts {
    Facts { samplers, compares: Some(compares), ..Facts::new(name, Family::Sampled, uncertainty, "none") }
}

/// The facts of densities at draws of the queries, or at the queries themselves.
const fn density_facts(name: &'static str, compares: &'static str, sampler: Option<&'static str>) -> Facts {
    Facts { orders: true, per_item: [false, true], ..facts(name, compares, "kappa", [sampler, None]) }
}

/// The pair function that compares draws from these samplers.
fn pair_function<'a, T: Normals, P: Sampler + 'a, R: Sampler + 'a>(
    request: &Request<'a, T>,
    comparison: impl Comparison<T> + 'a,
) -> BoxedKernel<'a, T> {
    let inputs = request.inputs;
    let (Matrix::Full(mu), Matrix::Full(uncertainty)) = (inputs.mu2, inputs.uncertainty2) else {
        return Err(Error::Value("a score of draws takes no gallery of halves".into()));
    };
    // A kernel in which nothing is random is given no seed.
    let draws = request.draws.unwrap_or((0, 1, 0));
    if !(1..=DRAWS).contains(&draws.1) {
        return Err(Error::Value(format!("n is {}, expected 1 .. {DRAWS}", draws.1)));
    }
    let count = match request.purpose {
        Purpose::Scores(count) | Purpose::Rerank(count, _) => count,
        _ => inputs.mu1.rows().saturating_mul(inputs.mu2.rows()),
    };
    Ok(Box::new(SampledScore::<_, _, P, R>::new(inputs, (mu, uncertainty), draws, comparison, count)))
}

fn mean_cosine<'a, T: Normals, P: Sampler + 'a, R: Sampler + 'a>(request: &Request<'a, T>) -> BoxedKernel<'a, T> {
    pair_function::<T, P, R>(request, MeanCosine { save: matches!(request.purpose, Purpose::Gradients(_)) })
}

fn mean_distance<'a, T: Normals, P: Sampler + 'a, R: Sampler + 'a>(request: &Request<'a, T>) -> BoxedKernel<'a, T> {
    pair_function::<T, P, R>(request, ByDistances(MeanDistance))
}

fn match_probability<'a, T: Normals>(request: &Request<'a, T>) -> BoxedKernel<'a, T> {
    pair_function::<T, Normal, Normal>(request, ByDistances(MatchProbability { line: request.both() }))
}

fn density<'a, T: Normals, P: Sampler + 'a>(
    request: &Request<'a, T>,
    stretched: bool,
    factor: LastFactor,
) -> BoxedKernel<'a, T> {
    pair_function::<T, P, Itself>(request, Density { orders: request.orders(), stretched, factor })
}

/// The scores of draws.
#[rustfmt::skip] // a line for each
pub const KERNELS: &[PairOp] = &[
    pair_op!(facts("sampled_cosine_normal", "directions", "var", [NORMAL, NORMAL]), |r| => mean_cosine::<T, Normal, Normal>(r)),
    pair_op!(facts("sampled_cosine_vmf", "directions", "kappa", [VMF, VMF]), |r| => mean_cosine::<T, VonMisesFisher, VonMisesFisher>(r)),
    pair_op!(facts("sampled_cosine_vmf_point", "directions", "kappa", [VMF, None]), |r| => mean_cosine::<T, VonMisesFisher, Itself>(r)),
    pair_op!(facts("sampled_cosine_point_vmf", "directions", "kappa", [None, VMF]), |r| => mean_cosine::<T, Itself, VonMisesFisher>(r)),
    pair_op!(facts("neg_sampled_l2_normal", "distances", "var", [NORMAL, NORMAL]), |r| => mean_distance::<T, Normal, Normal>(r)),
    pair_op!(facts("neg_sampled_l2_vmf", "distances", "kappa", [VMF, VMF]), |r| => mean_distance::<T, VonMisesFisher, VonMisesFisher>(r)),
    pair_op!(facts("neg_sampled_l2_vmf_point", "distances", "kappa", [VMF, None]), |r| => mean_distance::<T, VonMisesFisher, Itself>(r)),
    pair_op!(facts("neg_sampled_l2_point_vmf", "distances", "kappa", [None, VMF]), |r| => mean_distance::<T, Itself, VonMisesFisher>(r)),
    pair_op!(facts("hib_sampled", "distances", "var", [NORMAL, NORMAL]).with_shared("line"), |r| => match_probability(r)),
    pair_op!(density_facts("el_nivmf", "stretched", VMF), |r| => density::<T, VonMisesFisher>(r, true, Exact)),
    pair_op!(density_facts("el_nivmf_paper", "stretched", VMF), |r| => density::<T, VonMisesFisher>(r, true, Paper)),
    pair_op!(density_facts("el_nivmf_published", "densities", VMF), |r| => density::<T, VonMisesFisher>(r, false, Published)),
    pair_op!(density_facts("nivmf", "stretched", None), |r| => density::<T, Itself>(r, true, Exact)),
    pair_op!(density_facts("nivmf_paper", "stretched", None), |r| => density::<T, Itself>(r, true, Paper)),
    pair_op!(density_facts("nivmf_published", "stretched", None), |r| => density::<T, Itself>(r, true, Published)),
];
