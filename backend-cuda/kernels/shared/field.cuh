// What a source carries and what a target receives in the plane (adaptive2d, PlaneKernel).
//
// Defined in front: CHARGES (1: sources have a charge Γ, whose field is Γ log(z - z_j)), POLES (1: sources have a pole m,
// whose field is m/(z_j - z)), COMPLEX (0: the imaginary part of f has no meaning, and is left out), DERIVATIVES (0 to 2).
#pragma once

// Strengths of a source: Γ, then Re m and Im m.
#define STRENGTHS (CHARGES + 2 * POLES)
// Numbers of f, and values of a target: f, then f′ and f″, complex.
#define REALS (1 + COMPLEX)
#define VALUES (REALS + 2 * DERIVATIVES)
